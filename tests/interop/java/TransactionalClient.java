import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Commits, aborts, offsets inside a transaction, and a producer that is replaced; says on each line what came of it. */
public final class TransactionalClient {
    private static String bootstrap;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        String source = arguments[1];
        String target = arguments[2];
        String id = arguments[3];
        KafkaProducer<String, String> first = producer(id);
        first.beginTransaction();
        for (int number = 0; number < 10; number++) {
            first.send(new ProducerRecord<>(source, 0, null, "source " + number)).get();
        }
        first.commitTransaction();
        first.beginTransaction();
        first.send(new ProducerRecord<>(source, 0, null, "aborted")).get();
        first.abortTransaction();
        System.out.println("copied " + copy(first, source, target, id + "-group"));
        first.beginTransaction();
        first.send(new ProducerRecord<>(target, 0, null, "of a zombie")).get();
        KafkaProducer<String, String> second = producer(id);
        try {
            first.commitTransaction();
            System.out.println("the zombie committed");
        } catch (KafkaException fenced) {
            System.out.println("the zombie got " + fenced.getClass().getSimpleName());
        }
        second.beginTransaction();
        second.send(new ProducerRecord<>(target, 0, null, "of the successor")).get();
        second.commitTransaction();
        second.close();
        first.close(Duration.ofSeconds(1));
        System.out.println("read " + read(target));
    }

    private static KafkaProducer<String, String> producer(String id) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", id);
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        KafkaProducer<String, String> made = new KafkaProducer<>(settings);
        made.initTransactions();
        return made;
    }

    private static KafkaConsumer<String, String> consumer(String group) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("max.poll.records", "4");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        return new KafkaConsumer<>(settings);
    }

    private static int copy(KafkaProducer<String, String> producer, String source, String target, String group) {
        int copied = 0;
        try (KafkaConsumer<String, String> consumer = consumer(group)) {
            consumer.subscribe(List.of(source));
            while (copied < 10) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(10));
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                producer.beginTransaction();
                for (ConsumerRecord<String, String> record : records) {
                    producer.send(new ProducerRecord<>(target, 0, null, "copy of " + record.value()));
                    offsets.put(
                            new TopicPartition(record.topic(), record.partition()),
                            new OffsetAndMetadata(record.offset() + 1));
                    copied++;
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                producer.commitTransaction();
            }
        }
        return copied;
    }

    private static List<String> read(String topic) {
        try (KafkaConsumer<String, String> consumer = consumer("reader")) {
            TopicPartition place = new TopicPartition(topic, 0);
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            java.util.ArrayList<String> values = new java.util.ArrayList<>();
            long end = consumer.endOffsets(List.of(place)).get(place);
            while (consumer.position(place) < end) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> values.add(record.value()));
            }
            return values;
        }
    }
}
