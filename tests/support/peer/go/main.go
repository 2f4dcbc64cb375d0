// Sends messages from several goroutines until standard input ends: `sender NAMESERVER TOPIC`.
//
// Each outcome is a line of JSON: sent (SEND_OK), unsure (another status) or failed (an error).
// The last one is ended.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	pause   = 10 * time.Millisecond
	senders = 16
)

type row struct {
	Kind  string `json:"kind"`
	Body  string `json:"body"`
	Error string `json:"error,omitempty"`
}

func send(maker rocketmq.Producer, topic string, sender int, ending *atomic.Bool, rows chan<- row) {
	for number := 0; !ending.Load(); number++ {
		body := fmt.Sprintf("%d-%d", sender, number)
		result, err := maker.SendSync(context.Background(), primitive.NewMessage(topic, []byte(body)))
		switch {
		case err != nil:
			rows <- row{Kind: "failed", Body: body, Error: err.Error()}
		case result.Status == primitive.SendOK:
			rows <- row{Kind: "sent", Body: body}
		default:
			rows <- row{Kind: "unsure", Body: body}
		}
		time.Sleep(pause)
	}
}

func main() {
	rlog.SetLogLevel("error")
	nameserver, topic := os.Args[1], os.Args[2]
	maker, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{nameserver}), producer.WithGroupName("go-senders"), producer.WithRetry(2))
	if err != nil {
		panic(err)
	}
	if err = maker.Start(); err != nil {
		panic(err)
	}
	rows := make(chan row)
	var ending atomic.Bool
	var group sync.WaitGroup
	for sender := 0; sender < senders; sender++ {
		group.Add(1)
		go func(sender int) {
			defer group.Done()
			send(maker, topic, sender, &ending, rows)
		}(sender)
	}
	go func() {
		bufio.NewReader(os.Stdin).ReadString(0)
		ending.Store(true)
		group.Wait()
		close(rows)
	}()
	output := json.NewEncoder(os.Stdout)
	for outcome := range rows {
		output.Encode(outcome)
	}
	output.Encode(row{Kind: "ended"})
	maker.Shutdown()
}
