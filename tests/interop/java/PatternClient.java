import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidRegularExpression;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Subscriptions by pattern, one that the client resolves and one of the broker: topics come and go. One line a step. */
public final class PatternClient {
    private static final long PATIENCE_MS = 60_000;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("group.protocol", "consumer");
        settings.put("auto.offset.reset", "earliest");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        String prefix = arguments[2];
        System.out.println("waited for " + waitForATopic(settings, "early-" + prefix));
        try (Admin admin = Admin.create(settings);
                KafkaConsumer<String, String> member = new KafkaConsumer<>(settings)) {
            admin.createTopics(List.of(topic(prefix + "-one"), topic("not-" + prefix))).all().get();
            member.subscribe(new SubscriptionPattern(prefix + "-.*"));
            System.out.println("began with " + waitFor(member, Set.of(prefix + "-one")));
            admin.createTopics(List.of(topic(prefix + "-two"))).all().get();
            System.out.println("went on with " + waitFor(member, Set.of(prefix + "-one", prefix + "-two")));
            member.subscribe(new SubscriptionPattern(prefix + "-t[a-z]+"));
            System.out.println("ended with " + waitFor(member, Set.of(prefix + "-two")));
            member.subscribe(new SubscriptionPattern("(" + prefix));
            pollUntil(member, nothing -> false);
        } catch (InvalidRegularExpression refused) {
            System.out.println("refused");
        }
    }

    /** With a pattern that the client matches itself: it joins the group before there is anything to read. */
    private static Set<String> waitForATopic(Properties base, String name) throws Exception {
        Properties settings = new Properties();
        settings.putAll(base);
        settings.put("group.id", base.get("group.id") + "-early");
        settings.put("metadata.max.age.ms", "500");
        settings.put("enable.auto.commit", "false");
        try (Admin admin = Admin.create(settings);
                KafkaConsumer<String, String> member = new KafkaConsumer<>(settings)) {
            member.subscribe(Pattern.compile(name));
            for (int polls = 0; polls < 20; polls++) {
                member.poll(Duration.ofMillis(100));
            }
            admin.createTopics(List.of(topic(name))).all().get();
            Set<String> found = waitFor(member, Set.of(name));
            var everybody = new RemoveMembersFromConsumerGroupOptions();
            admin.removeMembersFromConsumerGroup((String) settings.get("group.id"), everybody).all().get();
            return found;
        }
    }

    private static NewTopic topic(String name) {
        return new NewTopic(name, 2, (short) 1);
    }

    private static Set<String> waitFor(KafkaConsumer<String, String> member, Set<String> topics) {
        pollUntil(member, assigned -> assigned.size() == 2 * topics.size() && topics.equals(names(assigned)));
        return names(member.assignment());
    }

    private static void pollUntil(
            KafkaConsumer<String, String> member, Predicate<Collection<TopicPartition>> isDone) {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (!isDone.test(member.assignment())) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("still assigned: " + member.assignment());
            }
            member.poll(Duration.ofMillis(100));
        }
    }

    private static Set<String> names(Collection<TopicPartition> partitions) {
        Set<String> names = new TreeSet<>();
        partitions.forEach(partition -> names.add(partition.topic()));
        return names;
    }
}
