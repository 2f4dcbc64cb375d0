import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Producers and a consumer as an application has them, which go on whatever the brokers do. */
final class Traffic {
    private static final int PAUSE_MS = 10;

    private final String nameserver;
    private final Peer peer;
    private volatile boolean ending;

    Traffic(String nameserver, Peer peer) {
        this.nameserver = nameserver;
        this.peer = peer;
    }

    /**
     * {@code topic, group, polls}: for each entry of {@code polls} (ms between looks for routes, 0
     * for the default) a producer that sends one message after the other, and a push consumer that
     * reads from the start. The next line of input ends the producers, for which there is a row
     * then, and the one after it the consumer; it takes both. A row for each message that is
     * {@code sent} (SEND_OK), {@code unsure}, {@code failed} (an exception) or {@code got}.
     */
    void flow(JSONObject command, BufferedReader input) throws Exception {
        String topic = command.getString("topic");
        DefaultMQPushConsumer push = new DefaultMQPushConsumer(command.getString("group"));
        push.setNamesrvAddr(nameserver);
        push.setInstanceName("flow");
        push.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        push.subscribe(topic, "*");
        push.registerMessageListener(
            (MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    show("got", message.getBody(), Map.of());
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        push.start();
        ending = false;
        List<Thread> threads = new ArrayList<>();
        for (int poll : command.getList("polls", Integer.class)) {
            Thread thread = new Thread(() -> send(topic, poll));
            thread.start();
            threads.add(thread);
        }
        input.readLine();
        ending = true;
        for (Thread thread : threads) {
            thread.join();
        }
        peer.row(Map.of("kind", "ended", "body", ""));
        input.readLine();
        push.shutdown();
    }

    private void send(String topic, int poll) {
        DefaultMQProducer producer = new DefaultMQProducer("flow-" + poll);
        producer.setNamesrvAddr(nameserver);
        producer.setInstanceName("flow-" + poll);
        if (poll > 0) {
            producer.setPollNameServerInterval(poll);
        }
        try {
            producer.start();
            for (int number = 0; !ending; number++) {
                byte[] body = (poll + "-" + number).getBytes(StandardCharsets.UTF_8);
                try {
                    SendResult result = producer.send(new Message(topic, body));
                    Map<String, Object> place = new LinkedHashMap<>();
                    place.put("queueId", result.getMessageQueue().getQueueId());
                    place.put("queueOffset", result.getQueueOffset());
                    place.put("offsetMsgId", result.getOffsetMsgId());
                    boolean isSafe = result.getSendStatus() == SendStatus.SEND_OK;
                    show(isSafe ? "sent" : "unsure", body, place);
                } catch (Exception error) {
                    show("failed", body, Map.of("error", error.toString()));
                }
                Thread.sleep(PAUSE_MS);
            }
        } catch (Exception error) {
            throw new IllegalStateException(error);
        } finally {
            producer.shutdown();
        }
    }

    private void show(String kind, byte[] body, Map<String, Object> more) {
        Map<String, Object> row = new LinkedHashMap<>(more);
        row.put("kind", kind);
        row.put("at", System.nanoTime()); // Linux: one clock for all processes
        row.put("body", new String(body, StandardCharsets.UTF_8));
        peer.row(row);
    }
}
