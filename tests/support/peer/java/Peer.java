import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/**
 * RocketMQ's own client, told what to do by lines of JSON.
 *
 * <p>{@code java Peer HOST:PORT} reads one command a line from standard input and does one after the
 * other. Each answers with any number of {@code {"row": ...}} lines and then one
 * {@code {"end": ROWS}} or {@code {"error": TEXT}}. It ends when standard input does.
 */
public final class Peer {
    private final PrintStream output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private long rows;

    /** One line; callers may be several threads. */
    synchronized void row(Map<String, Object> row) {
        rows++;
        output.println(JSON.toJSONString(Map.of("row", row)));
    }

    private synchronized void end(String key, Object value) {
        output.println(JSON.toJSONString(Map.of(key, value)));
        rows = 0;
    }

    private void serve(String nameserver) throws Exception {
        Sends sends = new Sends(nameserver, this);
        Reads reads = new Reads(nameserver, this);
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            try {
                JSONObject command = JSON.parseObject(line);
                String what = command.getString("do");
                if (what.equals("consume")) {
                    new Members(nameserver, this).consume(command, input);
                } else if (what.equals("flow")) {
                    new Traffic(nameserver, this).flow(command, input);
                } else {
                    obey(what, command, sends, reads);
                }
                end("end", rows);
            } catch (Exception error) {
                error.printStackTrace();
                end("error", error.toString());
            }
        }
    }

    private static void obey(String what, JSONObject command, Sends sends, Reads reads)
        throws Exception {
        switch (what) {
            case "create" -> sends.create(command);
            case "send" -> sends.send(command);
            case "load" -> sends.load(command);
            case "read" -> reads.read(command);
            case "query" -> reads.query(command);
            case "view" -> reads.view(command);
            case "offsets" -> reads.offsets(command);
            case "push" -> reads.push(command);
            default -> throw new IllegalArgumentException("unknown command " + what);
        }
    }

    /** Runs until standard input ends; threads of the clients do not keep it alive. */
    public static void main(String[] arguments) throws Exception {
        Peer peer = new Peer();
        // Libraries print to standard output too.
        System.setOut(System.err);
        // Else a queue that is not known or free at first is asked for again after 20 s.
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000");
        System.setProperty("rocketmq.client.rebalance.lockInterval", "1000");
        peer.serve(arguments[0]);
        Runtime.getRuntime().halt(0);
    }
}
