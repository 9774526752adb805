import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Two members of one group, polled in turn: they share, one leaves, the other takes over. One line for each step. */
public final class GroupClient {
    private static final long PATIENCE_MS = 60_000;

    public static void main(String[] arguments) {
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[4]);
        long messages = Long.parseLong(arguments[5]);
        KafkaConsumer<String, String> one = member(arguments, topic);
        KafkaConsumer<String, String> two = member(arguments, topic);
        List<KafkaConsumer<String, String>> both = List.of(one, two);
        TreeSet<String> read = new TreeSet<>();
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        boolean shared = false;
        while (read.size() < messages || !shared) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("read " + read.size() + " of " + messages);
            }
            both.forEach(member -> poll(member, read));
            shared |= one.assignment().size() == partitions / 2 && two.assignment().size() == partitions / 2;
        }
        System.out.println("shared and read " + read.size());
        two.close();
        while (one.assignment().size() < partitions && System.currentTimeMillis() < deadline) {
            poll(one, read);
        }
        one.commitSync(); // those that were refused in the middle of a rebalance
        System.out.println("left with " + one.assignment().size() + " partitions");
        TopicPartition place = new TopicPartition(topic, 0);
        System.out.println("committed " + one.committed(Set.of(place)).get(place).offset());
        one.seek(place, 0);
        ConsumerRecord<String, String> first = null;
        while (first == null) {
            for (ConsumerRecord<String, String> record : one.poll(Duration.ofMillis(200)).records(place)) {
                first = first == null ? record : first;
            }
        }
        System.out.println("after seek " + first.offset());
        one.close();
    }

    private static void poll(KafkaConsumer<String, String> member, Collection<String> read) {
        List<String> found = new ArrayList<>();
        member.poll(Duration.ofMillis(100))
                .forEach(record -> found.add(record.partition() + ":" + record.offset()));
        if (!found.isEmpty()) {
            read.addAll(found);
            try {
                member.commitSync();
            } catch (org.apache.kafka.clients.consumer.CommitFailedException
                    | org.apache.kafka.common.errors.RebalanceInProgressException rebalanced) {
                return; // whoever has the partitions now reads these again
            }
        }
    }

    private static KafkaConsumer<String, String> member(String[] arguments, String topic) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[2]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        if (arguments[3].contains(".")) { // a class of this client; the broker's assignors have plain names
            settings.put("partition.assignment.strategy", arguments[3]);
            settings.put("heartbeat.interval.ms", "300");
        } else {
            settings.put("group.protocol", "consumer");
            settings.put("group.remote.assignor", arguments[3]);
        }
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        KafkaConsumer<String, String> made = new KafkaConsumer<>(settings);
        made.subscribe(List.of(topic));
        return made;
    }
}
