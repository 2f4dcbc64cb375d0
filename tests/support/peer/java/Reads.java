import com.alibaba.fastjson2.JSONObject;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Commands that read, with the pull consumer that asks for one queue at a time. */
@SuppressWarnings("deprecation")
final class Reads {
    /** What a broker answers to a query that finds nothing; its constant moved between versions. */
    private static final int NO_MESSAGE = 208;
    private static final int PUSH_S = 150;
    private static final int ROUTES_MS = 1000;
    private static final int END_MS = 30_000;

    private final String nameserver;
    private final Peer peer;
    private DefaultMQPullConsumer consumer;

    Reads(String nameserver, Peer peer) {
        this.nameserver = nameserver;
        this.peer = peer;
    }

    /** {@code topic}: all messages of all its queues, in order within a queue. */
    void read(JSONObject command) throws Exception {
        for (MessageQueue queue : queues(command)) {
            long offset = 0;
            while (true) {
                PullResult result = consumer().pull(queue, "*", offset, 32);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        peer.row(shown(message));
                    }
                } else if (result.getNextBeginOffset() <= offset) {
                    break;
                }
                offset = result.getNextBeginOffset();
            }
        }
    }

    /** {@code topic}: first and next offset of each queue; the latter is committed and asked for. */
    void offsets(JSONObject command) throws Exception {
        for (MessageQueue queue : queues(command)) {
            Map<String, Object> row = new LinkedHashMap<>();
            row.put("queueId", queue.getQueueId());
            row.put("min", consumer().minOffset(queue));
            long next = consumer().maxOffset(queue);
            row.put("max", next);
            consumer().getOffsetStore().updateConsumeOffsetToBroker(queue, next, false);
            row.put("committed", consumer().fetchConsumeOffset(queue, true));
            peer.row(row);
        }
    }

    /** {@code topic, keys}: for each key what a query finds, at most 64. */
    void query(JSONObject command) throws Exception {
        String topic = command.getString("topic");
        for (String key : command.getList("keys", String.class)) {
            TreeSet<String> found = new TreeSet<>();
            try {
                QueryResult result = consumer().queryMessage(topic, key, 64, 0, Long.MAX_VALUE);
                for (MessageExt message : result.getMessageList()) {
                    found.add(((MessageClientExt) message).getOffsetMsgId());
                }
            } catch (MQClientException none) {
                if (none.getResponseCode() != NO_MESSAGE) {
                    throw none;
                }
            }
            peer.row(Map.of("key", key, "found", found));
        }
    }

    /** {@code topic, ids}: the message of each id. */
    void view(JSONObject command) throws Exception {
        for (String id : command.getList("ids", String.class)) {
            peer.row(shown(consumer().viewMessage(command.getString("topic"), id)));
        }
    }

    /**
     * {@code topic, group, tags, count}: what a push consumer gets from the start, until count came.
     * It asks for each message again {@code fails} times, at a delay {@code level}, of at most
     * {@code max} times that it may come again. With {@code shared} the broker shares the queues out
     * (from 5.0 on).
     */
    void push(JSONObject command) throws Exception {
        DefaultMQPushConsumer push = new DefaultMQPushConsumer(command.getString("group"));
        push.setNamesrvAddr(nameserver);
        push.setInstanceName("push-" + System.nanoTime());
        push.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        push.setPollNameServerInterval(ROUTES_MS); // the first retry makes its topic
        push.setAwaitTerminationMillisWhenShutdown(END_MS); // what it puts back then, it does once
        int fails = command.getIntValue("fails");
        if (command.containsKey("max")) {
            push.setMaxReconsumeTimes(command.getIntValue("max"));
        }
        if (command.getBooleanValue("shared")) {
            push.getClass().getMethod("setClientRebalance", boolean.class).invoke(push, false);
        }
        push.subscribe(command.getString("topic"), command.getString("tags"));
        CountDownLatch left = new CountDownLatch(command.getIntValue("count"));
        push.registerMessageListener(
            (MessageListenerConcurrently) (messages, context) -> {
                // One at a time, as Java's consumers do unless they are told otherwise.
                MessageExt message = messages.get(0);
                Map<String, Object> row = shown(message);
                row.put("reconsumeTimes", message.getReconsumeTimes());
                peer.row(row);
                left.countDown();
                context.setDelayLevelWhenNextConsume(command.getIntValue("level"));
                return message.getReconsumeTimes() < fails
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        push.start();
        try {
            if (!left.await(PUSH_S, TimeUnit.SECONDS)) {
                throw new IllegalStateException(left.getCount() + " messages did not come in time");
            }
        } finally {
            push.shutdown();
        }
    }

    private TreeSet<MessageQueue> queues(JSONObject command) throws Exception {
        return new TreeSet<>(consumer().fetchSubscribeMessageQueues(command.getString("topic")));
    }

    private DefaultMQPullConsumer consumer() throws Exception {
        if (consumer == null) {
            DefaultMQPullConsumer made = new DefaultMQPullConsumer("PeerConsumer");
            made.setNamesrvAddr(nameserver);
            made.start();
            consumer = made;
        }
        return consumer;
    }

    private static Map<String, Object> shown(MessageExt message) {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("topic", message.getTopic());
        row.put("queueId", message.getQueueId());
        row.put("queueOffset", message.getQueueOffset());
        row.put("commitLogOffset", message.getCommitLogOffset());
        row.put("msgId", message.getMsgId());
        row.put("offsetMsgId", ((MessageClientExt) message).getOffsetMsgId());
        row.put("tags", message.getTags());
        row.put("keys", message.getKeys());
        row.put("flag", message.getFlag());
        row.put("properties", message.getProperties());
        row.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        return row;
    }
}
