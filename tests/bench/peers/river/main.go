// SPDX-License-Identifier: Apache-2.0

// Command river measures River (https://riverqueue.com) for the bench: it takes the name of a
// measure and its arguments, and prints one line of JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	timeLimit     = 120 * time.Second
	delay         = time.Second     // of a job in "lateness"
	burstLead     = 3 * time.Second // from the last enqueue of a burst to its due time, about
	singlesAtOnce = 64
	warmUpJobs    = 500
)

type figures map[string]any

type measure struct {
	args int // how many whole numbers it takes
	run  func(ctx context.Context, p *peer, args []int) (figures, error)
}

var measures = map[string]measure{
	"enqueue_single": {1, enqueueSingle},
	"enqueue_batch":  {1, enqueueBatch},
	"lifecycle":      {1, lifecycle},
	"lifecycle_http": {1, lifecycle},
	"drain":          {1, drain},
	"lateness":       {2, lateness},
	"burst":          {1, burst},
	"burst_http":     {1, burst},
}

func main() {
	// For what does not listen to its context.
	time.AfterFunc(timeLimit+time.Second, func() { fail(errors.New("not within 120 s")) })
	ctx, cancel := context.WithTimeout(context.Background(), timeLimit)
	defer cancel()
	if err := run(ctx, os.Args[1:]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintf(os.Stderr, "river: %s\n", strings.Join(strings.Fields(err.Error()), " "))
	os.Exit(1)
}

func run(ctx context.Context, words []string) error {
	if len(words) == 0 {
		return errors.New("no measure named")
	}
	name := words[0]
	m, known := measures[name]
	if !known || len(words) != 1+m.args {
		return fmt.Errorf("no such measure: %q", words)
	}
	args := make([]int, m.args)
	for i, word := range words[1:] {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > 9_999_999 {
			return fmt.Errorf("%s: %q is not a number from 1 to 9,999,999", name, word)
		}
		args[i] = n
	}
	receiver := ""
	if name == "lifecycle_http" || name == "burst_http" {
		if receiver = os.Getenv("RECEIVER_URL"); receiver == "" {
			return errors.New("RECEIVER_URL is not set")
		}
	}
	p, err := openPeer(ctx, os.Getenv("DATABASE_URL"), receiver)
	if err != nil {
		return err
	}
	defer p.close()
	found, err := m.run(ctx, p, args)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	found["measure"] = name
	return json.NewEncoder(os.Stdout).Encode(found)
}

func perSecond(n int, took time.Duration) figures {
	return figures{"n": n, "per_second": math.Round(float64(n) / took.Seconds())}
}

func enqueueSingle(ctx context.Context, p *peer, args []int) (figures, error) {
	n := args[0]
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	started := time.Now()
	for range singlesAtOnce {
		group.Go(func() error {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := p.enqueue(ctx, int(i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return perSecond(n, time.Since(started)), nil
}

func enqueueBatch(ctx context.Context, p *peer, args []int) (figures, error) {
	started := time.Now()
	if err := p.enqueueAll(ctx, args[0], producers, time.Time{}); err != nil {
		return nil, err
	}
	return perSecond(args[0], time.Since(started)), nil
}

func lifecycle(ctx context.Context, p *peer, args []int) (figures, error) {
	if err := p.work(ctx, 0); err != nil {
		return nil, err
	}
	if _, err := p.warmUp(ctx, warmUpJobs, time.Time{}); err != nil {
		return nil, err
	}
	started := time.Now()
	if err := p.enqueueAll(ctx, args[0], 1, time.Time{}); err != nil {
		return nil, err
	}
	if err := p.finish(ctx, args[0]); err != nil {
		return nil, err
	}
	return perSecond(args[0], time.Since(started)), nil
}

func drain(ctx context.Context, p *peer, args []int) (figures, error) {
	if err := p.enqueueAll(ctx, args[0], producers, time.Time{}); err != nil {
		return nil, err
	}
	if err := p.settle(ctx); err != nil {
		return nil, err
	}
	if err := p.work(ctx, 0); err != nil {
		return nil, err
	}
	if err := p.finish(ctx, args[0]); err != nil {
		return nil, err
	}
	return perSecond(args[0], time.Since(p.first())), nil
}

// A job in the future becomes available by a service that only the elected client runs: the warm-up
// waits for that.
func lateness(ctx context.Context, p *peer, args []int) (figures, error) {
	rate, n := args[0], args[0]*args[1]
	if err := p.work(ctx, n); err != nil {
		return nil, err
	}
	if _, err := p.warmUp(ctx, 1, time.Now().Add(delay)); err != nil {
		return nil, err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(poolSize)
	started := time.Now()
	for sent := 0; sent < n; time.Sleep(time.Millisecond) {
		from := sent
		sent = min(n, int(time.Since(started).Seconds()*float64(rate)))
		if from == sent {
			continue
		}
		to, due := sent, time.Now().Add(delay)
		group.Go(func() error { return p.enqueueRange(groupCtx, from+1, to, due) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	took := time.Since(started)
	if err := p.finish(ctx, n); err != nil {
		return nil, err
	}
	late := p.lateness()
	slices.Sort(late)
	at := func(part float64) float64 {
		return tenths(late[int(math.Ceil(part*float64(len(late))))-1])
	}
	return figures{"n": n, "per_second": math.Round(float64(n) / took.Seconds()),
		"p50_ms": at(0.5), "p99_ms": at(0.99), "p999_ms": at(0.999), "max_ms": at(1)}, nil
}

func burst(ctx context.Context, p *peer, args []int) (figures, error) {
	n := args[0]
	if err := p.work(ctx, n); err != nil {
		return nil, err
	}
	stored, err := p.warmUp(ctx, warmUpJobs, time.Now().Add(delay))
	if err != nil {
		return nil, err
	}
	due := time.Now().Add(burstLead + stored*time.Duration(n)/warmUpJobs)
	if err := p.enqueueAll(ctx, n, producers, due); err != nil {
		return nil, err
	}
	if err := p.settle(ctx); err != nil {
		return nil, err
	}
	if time.Now().After(due) {
		return nil, errors.New("the jobs were due before all of them were stored")
	}
	if err := p.finish(ctx, n); err != nil {
		return nil, err
	}
	return figures{"n": n, "all_ms": tenths(slices.Max(p.lateness()))}, nil
}

func tenths(ms float64) float64 { return math.Round(ms*10) / 10 }
