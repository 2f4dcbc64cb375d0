package orders;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Test;

/** Orders are sent until each is acknowledged, and all of them are read again. */
class OrdersTest {
    static final String NAMESRV = System.getProperty("namesrv");
    static final int ORDERS = 300;
    static final long LIMIT_MS = 90_000;

    @Test
    void everyAcknowledgedOrderIsRead() throws Exception {
        Set<String> sent = send();
        Set<String> read = read(sent.size());
        assertEquals(ORDERS, sent.size());
        assertTrue(read.containsAll(sent), "acknowledged and not read: " + minus(sent, read));
    }

    private Set<String> send() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java-shop");
        producer.setNamesrvAddr(NAMESRV);
        producer.setSendMsgTimeout(2000);
        producer.setPollNameServerInterval(500);
        producer.start();
        Set<String> sent = new HashSet<>();
        long deadline = System.currentTimeMillis() + LIMIT_MS;
        try {
            for (int number = 0; number < ORDERS; ) {
                assertTrue(System.currentTimeMillis() < deadline, "orders were not taken in time");
                String text = "order-" + number;
                try {
                    Message message = new Message("orders", text.getBytes());
                    if (producer.send(message).getSendStatus() == SendStatus.SEND_OK) {
                        sent.add(text);
                        number++;
                    }
                } catch (Exception notNow) {
                    Thread.sleep(100);
                }
                if (number == ORDERS / 3) {
                    Files.writeString(Path.of(System.getProperty("marker")), "a third is sent");
                }
                Thread.sleep(10);
            }
        } finally {
            producer.shutdown();
        }
        return sent;
    }

    private Set<String> read(int wanted) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("java-auditor");
        consumer.setNamesrvAddr(NAMESRV);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("orders", "*");
        consumer.start();
        Set<String> read = new HashSet<>();
        long deadline = System.currentTimeMillis() + LIMIT_MS;
        try {
            while (read.size() < wanted && System.currentTimeMillis() < deadline) {
                for (MessageExt message : consumer.poll(500)) {
                    read.add(new String(message.getBody()));
                }
            }
        } finally {
            consumer.shutdown();
        }
        return read;
    }

    private static Set<String> minus(Set<String> all, Set<String> some) {
        Set<String> rest = new HashSet<>(all);
        rest.removeAll(some);
        return rest;
    }
}
