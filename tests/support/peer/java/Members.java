import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** One consumer of each kind that {@link Reads} has not, all at once, each in a group of its kind. */
final class Members {
    private static final int AWAKE_MS = 1000;

    private final String nameserver;
    private final Peer peer;
    private volatile boolean ending;

    Members(String nameserver, Peer peer) {
        this.nameserver = nameserver;
        this.peer = peer;
    }

    /**
     * {@code topic, name, queues}: all that an orderly, a broadcasting and two lite pull consumers
     * get from the start, one of the latter assigned to {@code queues}; until the next line of
     * input, which it takes. The orderly one asks once more for what has the tag {@code again}.
     */
    void consume(JSONObject command, BufferedReader input) throws Exception {
        String topic = command.getString("topic");
        String name = command.getString("name");
        List<Integer> wanted = command.getList("queues", Integer.class);
        DefaultMQPushConsumer orderly = push("orderly", name, topic);
        orderly.registerMessageListener(
            (MessageListenerOrderly) (messages, context) -> {
                MessageExt message = messages.get(0);
                show("orderly", message);
                context.setSuspendCurrentQueueTimeMillis(10);
                return "again".equals(message.getTags()) && message.getReconsumeTimes() == 0
                    ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
                    : ConsumeOrderlyStatus.SUCCESS;
            });
        DefaultMQPushConsumer broadcasting = push("broadcasting", name, topic);
        broadcast(broadcasting);
        broadcasting.registerMessageListener(
            (MessageListenerConcurrently) (messages, context) -> {
                show("broadcasting", messages.get(0));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        DefaultLitePullConsumer lite = lite("lite", name);
        lite.subscribe(topic, "*");
        DefaultLitePullConsumer assigned = lite("assigned", name);

        orderly.start();
        broadcasting.start();
        lite.start();
        assigned.start();
        assigned.assign(
            assigned.fetchMessageQueues(topic).stream()
                .filter(queue -> wanted.contains(queue.getQueueId()))
                .toList());
        ending = false;
        List<Thread> polls = List.of(polling("lite", lite), polling("assigned", assigned));
        input.readLine();
        ending = true;
        for (Thread poll : polls) {
            poll.join();
        }
        orderly.shutdown();
        broadcasting.shutdown();
        lite.shutdown();
        assigned.shutdown();
    }

    private DefaultMQPushConsumer push(String kind, String name, String topic) throws Exception {
        DefaultMQPushConsumer push = awake(new DefaultMQPushConsumer("peer-" + kind), kind, name);
        push.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        push.setAwaitTerminationMillisWhenShutdown(10 * AWAKE_MS);
        push.subscribe(topic, "*");
        return push;
    }

    private DefaultLitePullConsumer lite(String kind, String name) {
        DefaultLitePullConsumer lite =
            awake(new DefaultLitePullConsumer("peer-" + kind), kind, name);
        lite.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        lite.setAutoCommit(false);
        return lite;
    }

    /** It saves and reports every second, and has the same id (and file) when it comes again. */
    private <T extends ClientConfig> T awake(T client, String kind, String name) {
        client.setNamesrvAddr(nameserver);
        client.setInstanceName(name + "-" + kind);
        client.setHeartbeatBrokerInterval(AWAKE_MS);
        client.setPersistConsumerOffsetInterval(AWAKE_MS);
        return client;
    }

    /** The type of the model moved between versions. */
    private static void broadcast(DefaultMQPushConsumer push) throws Exception {
        Class<?> model = push.getClass().getMethod("getMessageModel").getReturnType();
        Method set = push.getClass().getMethod("setMessageModel", model);
        set.invoke(push, model.getField("BROADCASTING").get(null));
    }

    @SuppressWarnings("deprecation")
    private Thread polling(String kind, DefaultLitePullConsumer lite) {
        Thread poll =
            new Thread(
                () -> {
                    while (!ending) {
                        lite.poll(AWAKE_MS / 10).forEach(message -> show(kind, message));
                        lite.commitSync();
                    }
                });
        poll.start();
        return poll;
    }

    private void show(String kind, MessageExt message) {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("kind", kind);
        row.put("at", System.nanoTime()); // Linux: one clock for all processes
        row.put("queueId", message.getQueueId());
        row.put("queueOffset", message.getQueueOffset());
        row.put("again", "again".equals(message.getTags()) && message.getReconsumeTimes() == 0);
        row.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        peer.row(row);
    }
}
