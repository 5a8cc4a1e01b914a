// The process of a test's container: exists for so many seconds, or until it is ended.
package main

import (
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	var end <-chan time.Time
	if len(os.Args) > 1 {
		lifetime, err := time.ParseDuration(os.Args[1])
		if err != nil {
			log.Fatal(err)
		}
		end = time.After(lifetime)
	}
	// The first process of a container ends by no signal that it does not take.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-end:
	case <-signals:
	}
}
