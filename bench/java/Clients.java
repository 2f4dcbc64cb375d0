import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The measures of readers.py with Java's client and the defaults of its push consumer:
 * {@code java -cp JARS/* Clients.java KIND NAMESERVERS TOPIC NUMBER}. Prints what readers.py prints.
 */
public final class Clients {
    private static final int STAMP = 20;
    private static final long SILENT_NS = 3_000_000_000L;
    private static final int AT_ONCE = 64;

    private final String nameservers;
    private final String topic;

    private Clients(String nameservers, String topic) {
        this.nameservers = nameservers;
        this.topic = topic;
    }

    public static void main(String[] arguments) throws Exception {
        Clients clients = new Clients(arguments[1], arguments[2]);
        int number = Integer.parseInt(arguments[3]);
        switch (arguments[0]) {
            case "listen" -> clients.listen();
            case "first" -> clients.first(number);
            case "drain" -> clients.drain(number);
            default -> clients.send(number);
        }
        System.exit(0);
    }

    private DefaultMQPushConsumer consumer(String group, boolean fromFirst, MessageListenerConcurrently listener)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group + "-" + System.nanoTime());
        consumer.setNamesrvAddr(nameservers);
        consumer.setConsumeFromWhere(fromFirst
            ? ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET : ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(listener);
        consumer.start();
        return consumer;
    }

    /** Latencies of messages of paced.py, whose time stamps use the same clock. */
    private void listen() throws Exception {
        List<Long> times = new ArrayList<>();
        AtomicLong ended = new AtomicLong();
        AtomicLong began = new AtomicLong();
        consumer("bench-java-listen", false, (messages, context) -> {
            for (MessageExt message : messages) {
                long now = System.nanoTime();
                long sent = Long.parseLong(new String(message.getBody(), 0, STAMP, StandardCharsets.UTF_8));
                synchronized (times) {
                    times.add(now - sent);
                }
                began.compareAndSet(0, now);
                ended.set(now);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        Thread.sleep(5000);  // it has no call that tells if its queues are assigned
        System.out.println("ready");
        while (ended.get() == 0 || System.nanoTime() - ended.get() < SILENT_NS) {
            Thread.sleep(100);
        }
        long[] sorted = times.stream().mapToLong(Long::longValue).sorted().toArray();
        int count = sorted.length;
        show("p50", sorted[count / 2] / 1e6, "ms", "p99", sorted[count * 99 / 100] / 1e6, "ms",
            "received", count / ((ended.get() - began.get()) / 1e9), "messages/s", "count", (double) count, "messages");
    }

    private void first(int times) throws Exception {
        double[] took = new double[times];
        for (int number = 0; number < times; number++) {
            CountDownLatch came = new CountDownLatch(1);
            long began = System.nanoTime();
            DefaultMQPushConsumer consumer = consumer("bench-java-first", true, (messages, context) -> {
                came.countDown();
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            came.await();
            took[number] = (System.nanoTime() - began) / 1e6;
            consumer.shutdown();
        }
        Arrays.sort(took);
        show("median", took[times / 2], "ms", "longest", took[times - 1], "ms");
    }

    private void drain(int count) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        long began = System.nanoTime();
        consumer("bench-java-drain", true, (messages, context) -> {
            messages.forEach(message -> left.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        left.await(10, TimeUnit.MINUTES);
        show("by listen", count / ((System.nanoTime() - began) / 1e9), "messages/s");
    }

    /** Synchronous sends of threads; the second half counts, Java compiles while it runs. */
    private void send(int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench-java-send");
        producer.setNamesrvAddr(nameservers);
        producer.start();
        double rate = 0;
        for (int half = 0; half < 2; half++) {
            AtomicInteger next = new AtomicInteger();
            long began = System.nanoTime();
            Thread[] threads = new Thread[AT_ONCE];
            for (int number = 0; number < AT_ONCE; number++) {
                threads[number] = new Thread(() -> {
                    byte[] body = new byte[1024];
                    while (next.getAndIncrement() < count) {
                        try {
                            producer.send(new Message(topic, body));
                        } catch (Exception problem) {
                            throw new IllegalStateException(problem);
                        }
                    }
                });
                threads[number].start();
            }
            for (Thread thread : threads) {
                thread.join();
            }
            rate = count / ((System.nanoTime() - began) / 1e9);
        }
        show(AT_ONCE + " at once", rate, "/s");
    }

    /** Name, value and unit of each figure. */
    private static void show(Object... parts) {
        List<String> rows = new ArrayList<>();
        for (int at = 0; at < parts.length; at += 3) {
            rows.add(String.format("\"%s\": [%f, \"%s\"]", parts[at], (Double) parts[at + 1], parts[at + 2]));
        }
        System.out.println("{" + String.join(", ", rows) + "}");
    }
}
