import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Share consumers that acknowledge each record by itself. One line for each delivery: the consumer's number, the value,
 * the delivery count.
 *
 * <p>ShareClient BOOTSTRAP TOPIC GROUP settle RELEASES DELIVERIES QUIET_MS: a record is released that many times and then
 * accepted; after so many deliveries the program stays for a while, to see whether more come.
 *
 * <p>ShareClient BOOTSTRAP TOPIC GROUP hold DELIVERIES: the first consumer holds what it gets until the second gets it.
 *
 * <p>ShareClient BOOTSTRAP TOPIC GROUP share CONSUMERS: records are sent until each consumer has had one.
 */
public final class ShareClient {
    private static final long PATIENCE_MS = 60_000;
    private static final Duration POLL = Duration.ofMillis(100);

    private final String[] arguments;
    private final long deadline = System.currentTimeMillis() + PATIENCE_MS;
    private final List<KafkaShareConsumer<String, String>> consumers = new ArrayList<>();
    private int deliveries = 0;

    private ShareClient(String[] arguments, int consumers) {
        this.arguments = arguments;
        for (int number = 0; number < consumers; number++) {
            this.consumers.add(consumer());
        }
    }

    public static void main(String[] arguments) throws Exception {
        int number = Integer.parseInt(arguments[4]);
        switch (arguments[3]) {
            case "settle" -> new ShareClient(arguments, 1).settle(number);
            case "hold" -> new ShareClient(arguments, 2).hold(number);
            case "share" -> new ShareClient(arguments, number).share();
            default -> throw new IllegalArgumentException(arguments[3]);
        }
    }

    private void settle(int releases) {
        int expected = Integer.parseInt(arguments[5]);
        long quietMs = Long.parseLong(arguments[6]);
        while (deliveries < expected) {
            settle(poll(0), releases);
        }
        long end = System.currentTimeMillis() + quietMs;
        while (System.currentTimeMillis() < end) {
            settle(poll(0), releases);
        }
        close();
    }

    private void hold(int expected) {
        List<ConsumerRecord<String, String>> held = poll(0);
        while (held.isEmpty()) {
            held = poll(0);
        }
        int first = held.size();
        while (deliveries < first + expected) {
            List<ConsumerRecord<String, String>> taken = poll(1);
            if (!held.isEmpty() && !taken.isEmpty() && taken.get(0).deliveryCount().orElse((short) 0) > 1) {
                acknowledgeLate(held);
                held = List.of();
            }
            settle(1, taken, 0);
        }
        close();
    }

    /** While somebody else holds them. */
    private void acknowledgeLate(List<ConsumerRecord<String, String>> records) {
        records.forEach(record -> consumers.get(0).acknowledge(record, AcknowledgeType.ACCEPT));
        for (Optional<KafkaException> outcome : consumers.get(0).commitSync().values()) {
            System.out.println("too late: " + outcome.map(each -> each.getClass().getSimpleName()).orElse("no"));
        }
    }

    private void share() throws Exception {
        Set<Integer> busy = new HashSet<>();
        int sent = 0;
        try (KafkaProducer<String, String> producer = producer()) {
            while (busy.size() < consumers.size() || deliveries < sent) {
                if (busy.size() < consumers.size()) {
                    for (int each = 0; each < consumers.size(); each++) { // a batch each, to be shared one by one
                        producer.send(new ProducerRecord<>(arguments[1], 0, null, "job-" + sent++)).get();
                    }
                }
                for (int number = 0; number < consumers.size(); number++) {
                    List<ConsumerRecord<String, String>> records = poll(number);
                    if (!records.isEmpty()) {
                        busy.add(number);
                    }
                    settle(number, records, 0);
                }
            }
        }
        System.out.println("sent " + sent);
        close();
    }

    private List<ConsumerRecord<String, String>> poll(int number) {
        if (System.currentTimeMillis() > deadline) {
            throw new IllegalStateException("only " + deliveries + " deliveries");
        }
        List<ConsumerRecord<String, String>> records = new ArrayList<>();
        consumers.get(number).poll(POLL).forEach(records::add);
        for (ConsumerRecord<String, String> record : records) {
            deliveries++;
            System.out.println(number + " " + record.value() + " " + record.deliveryCount().orElse((short) 0));
        }
        return records;
    }

    private void settle(List<ConsumerRecord<String, String>> records, int releases) {
        settle(0, records, releases);
    }

    /** Release what came so many times or fewer, accept the rest, and wait until the broker knows. */
    private void settle(int number, List<ConsumerRecord<String, String>> records, int releases) {
        for (ConsumerRecord<String, String> record : records) {
            boolean isReleased = record.deliveryCount().orElse((short) 0) <= releases;
            consumers.get(number).acknowledge(record, isReleased ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
        }
        Map<TopicIdPartition, Optional<KafkaException>> outcomes = consumers.get(number).commitSync();
        for (Optional<KafkaException> failure : outcomes.values()) {
            if (failure.isPresent()) {
                throw failure.get();
            }
        }
    }

    private void close() {
        consumers.forEach(KafkaShareConsumer::close);
    }

    private KafkaShareConsumer<String, String> consumer() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[2]);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("max.poll.records", "5");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        KafkaShareConsumer<String, String> made = new KafkaShareConsumer<>(settings);
        made.subscribe(List.of(arguments[1]));
        return made;
    }

    private KafkaProducer<String, String> producer() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        return new KafkaProducer<>(settings);
    }
}
