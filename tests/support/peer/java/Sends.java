import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Commands that write. */
final class Sends {
    private final String nameserver;
    private final Peer peer;
    private DefaultMQProducer producer;

    Sends(String nameserver, Peer peer) {
        this.nameserver = nameserver;
        this.peer = peer;
    }

    /** {@code address, topic, queues}: make a topic at one broker. */
    void create(JSONObject command) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(nameserver);
        admin.setInstanceName("create-" + System.nanoTime());
        admin.start();
        try {
            int queues = command.getIntValue("queues");
            TopicConfig config = new TopicConfig(command.getString("topic"), queues, queues, 6);
            admin.createAndUpdateTopicConfig(command.getString("address"), config);
        } finally {
            admin.shutdown();
        }
    }

    /**
     * {@code messages, batch}: send each, or all as one batch. A message has {@code topic, body}
     * (base64) and may have {@code tags, keys, properties, flag, wait}, and {@code order}: the key that chooses the queue.
     */
    void send(JSONObject command) throws Exception {
        JSONArray wanted = command.getJSONArray("messages");
        if (command.getBooleanValue("batch")) {
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < wanted.size(); i++) {
                batch.add(message(wanted.getJSONObject(i)));
            }
            peer.row(shown(batch.get(0).getTopic(), producer().send(batch)));
            return;
        }
        for (int i = 0; i < wanted.size(); i++) {
            JSONObject one = wanted.getJSONObject(i);
            Message message = message(one);
            String order = one.getString("order");
            SendResult result =
                order == null
                    ? producer().send(message)
                    : producer().send(message, new SelectMessageQueueByHash(), order);
            peer.row(shown(message.getTopic(), result));
        }
    }

    /**
     * {@code topic, broker, queues, threads, size}: every thread sends one message after the other
     * until one is not acknowledged. Message n of thread t has the key and the body's beginning
     * {@code t-n}. A row for each that was acknowledged.
     */
    void load(JSONObject command) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < command.getIntValue("threads"); i++) {
            int number = i;
            Thread thread = new Thread(() -> sendUntilFailure(command, number));
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private void sendUntilFailure(JSONObject command, int thread) {
        int queues = command.getIntValue("queues");
        try {
            for (int number = 0; ; number++) {
                String name = thread + "-" + number;
                byte[] body = new byte[command.getIntValue("size") + number % 97];
                byte[] start = (name + ".").getBytes();
                System.arraycopy(start, 0, body, 0, start.length);
                Message message = new Message(command.getString("topic"), "tag" + number % 3, name, body);
                SendResult result = producer().send(message, queue(command, number % queues));
                Map<String, Object> row = shown(message.getTopic(), result);
                row.put("key", name);
                row.put("size", body.length);
                peer.row(row);
            }
        } catch (Exception expected) {
            System.err.println("thread " + thread + " ended: " + expected);
        }
    }

    private static MessageQueue queue(JSONObject where, int id) {
        return new MessageQueue(where.getString("topic"), where.getString("broker"), id);
    }

    private static Message message(JSONObject wanted) {
        byte[] body = Base64.getDecoder().decode(wanted.getString("body"));
        Message message = new Message(wanted.getString("topic"), body);
        if (wanted.containsKey("tags")) {
            message.setTags(wanted.getString("tags"));
        }
        if (wanted.containsKey("keys")) {
            message.setKeys(wanted.getString("keys"));
        }
        if (wanted.containsKey("properties")) {
            wanted.getJSONObject("properties").forEach((k, v) -> message.putUserProperty(k, (String) v));
        }
        message.setWaitStoreMsgOK(wanted.getBooleanValue("wait"));
        message.setFlag(wanted.getIntValue("flag"));
        return message;
    }

    private static Map<String, Object> shown(String topic, SendResult result) {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("topic", topic);
        row.put("queueId", result.getMessageQueue().getQueueId());
        row.put("queueOffset", result.getQueueOffset());
        row.put("msgId", result.getMsgId());
        row.put("offsetMsgId", result.getOffsetMsgId());
        row.put("status", result.getSendStatus().name());
        return row;
    }

    private synchronized DefaultMQProducer producer() throws Exception {
        if (producer == null) {
            DefaultMQProducer made = new DefaultMQProducer("PeerProducer");
            made.setNamesrvAddr(nameserver);
            made.setRetryTimesWhenSendFailed(0);
            made.setSendMsgTimeout(10_000);
            made.setCompressMsgBodyOverHowmuch(4096);
            made.start();
            producer = made;
        }
        return producer;
    }
}
