// franz-go's plain producer and consumer against one broker.
//
//	franz produce BOOTSTRAP TOPIC COUNT none|gzip|snappy|lz4|zstd
//	franz consume BOOTSTRAP TOPIC COUNT
//
// Producing sends COUNT idempotent records, key "key-N", value "value N", header n=N, to the partition that the
// key's hash gives. Consuming prints COUNT lines "partition offset key value header", without a group.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func main() {
	if len(os.Args) < 5 {
		fail(fmt.Errorf("say: franz produce|consume BOOTSTRAP TOPIC COUNT [CODEC]"))
	}
	bootstrap, topic := os.Args[2], os.Args[3]
	count, err := strconv.Atoi(os.Args[4])
	fail(err)
	context, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if os.Args[1] == "produce" {
		produce(context, bootstrap, topic, count, codecs[os.Args[5]])
	} else {
		consume(context, bootstrap, topic, count)
	}
}

func produce(context context.Context, bootstrap, topic string, count int, codec kgo.CompressionCodec) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap), kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(codec))
	fail(err)
	defer client.Close()
	records := make([]*kgo.Record, count)
	for number := range records {
		text := strconv.Itoa(number)
		records[number] = &kgo.Record{
			Key:     []byte("key-" + text),
			Value:   []byte("value " + text),
			Headers: []kgo.RecordHeader{{Key: "n", Value: []byte(text)}},
		}
	}
	fail(client.ProduceSync(context, records...).FirstErr())
}

func consume(context context.Context, bootstrap, topic string, count int) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	fail(err)
	defer client.Close()
	for seen := 0; seen < count; {
		fetches := client.PollFetches(context)
		fail(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			seen++
			fmt.Println(record.Partition, record.Offset, string(record.Key), string(record.Value), string(record.Headers[0].Value))
		})
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
