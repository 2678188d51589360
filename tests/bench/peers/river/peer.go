// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"golang.org/x/sync/errgroup"
)

// Marked "River" is what River's documentation or its own benchmark (`river bench`) sets; the rest
// was found by trying on two cores.
const (
	fetchCooldown     = 2 * time.Millisecond  // River
	fetchPollInterval = 20 * time.Millisecond // River
	maxWorkers        = 2_000                 // River
	maxWorkersHTTP    = 256                   // each has a connection of its own
	batchSize         = 5_000                 // River
	producers         = 2                     // of batches, where nothing else runs
	poolSize          = 20
)

// order is a job: its arguments are the payload.
type order struct {
	OrderID  string `json:"orderId"`
	Amount   int    `json:"amount"`
	Currency string `json:"currency"`
	Reason   string `json:"reason"`
}

func (order) Kind() string { return "order" }

// The id carries the due time, so that a handler needs nothing else to know how late it is.
func newOrder(i int, due time.Time) order {
	ms := int64(0)
	if !due.IsZero() {
		ms = due.UnixMilli()
	}
	return order{fmt.Sprintf("%013d%07d", ms, i), 12999, "EUR", "payment time-out"}
}

func insertOpts(due time.Time) *river.InsertOpts {
	if due.IsZero() {
		return nil
	}
	// PostgreSQL keeps microseconds; the measures speak of milliseconds.
	return &river.InsertOpts{ScheduledAt: time.UnixMilli(due.UnixMilli())}
}

type peer struct {
	pool     *pgxpool.Pool
	client   *river.Client[pgx.Tx]
	receiver string // empty: handlers do nothing
	http     *http.Client

	handled atomic.Int64 // handlers that have ended
	begun   atomic.Int64 // handlers that have begun
	firstNs atomic.Int64 // when the first began
	late    []float64    // milliseconds, in the order of beginning; has room for all, or is nil
}

func openPeer(ctx context.Context, databaseURL, receiver string) (*peer, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, errors.New("DATABASE_URL is no URL of a PostgreSQL database")
	}
	config.MaxConns = poolSize
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	p := &peer{pool: pool, receiver: receiver}
	if err := p.prepare(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return p, nil
}

// prepare migrates and empties the database and makes the client.
func (p *peer) prepare(ctx context.Context) error {
	logger := slog.New(slog.DiscardHandler)
	driver := riverpgxv5.New(p.pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: logger})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	if _, err := p.pool.Exec(ctx, `TRUNCATE river_job, river_leader, river_queue`); err != nil {
		return err
	}
	workers, queue := river.NewWorkers(), river.QueueConfig{MaxWorkers: maxWorkers}
	if p.receiver != "" {
		queue.MaxWorkers = maxWorkersHTTP
		p.http = &http.Client{Transport: &http.Transport{
			MaxIdleConns: maxWorkersHTTP, MaxIdleConnsPerHost: maxWorkersHTTP}}
	}
	river.AddWorker(workers, river.WorkFunc(p.handle))
	p.client, err = river.NewClient(driver, &river.Config{
		FetchCooldown:     fetchCooldown,
		FetchPollInterval: fetchPollInterval,
		Logger:            logger,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: queue},
		Workers:           workers,
	})
	return err
}

func (p *peer) close() { p.pool.Close() }

func (p *peer) handle(ctx context.Context, job *river.Job[order]) error {
	now := time.Now()
	i := p.begun.Add(1) - 1
	if i == 0 {
		p.firstNs.Store(now.UnixNano())
	}
	if i < int64(len(p.late)) {
		due, err := strconv.ParseInt(job.Args.OrderID[:13], 10, 64)
		if err != nil {
			return err
		}
		p.late[i] = float64(now.UnixMicro())/1000 - float64(due)
	}
	if p.http != nil {
		if err := p.post(ctx, job.EncodedArgs); err != nil {
			fail(err) // a retry would not be what is measured
		}
	}
	p.handled.Add(1)
	return nil
}

func (p *peer) post(ctx context.Context, payload []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.receiver,
		bytes.NewReader(payload))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := p.http.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the receiver answered %d", answer.StatusCode)
	}
	return nil
}

func (p *peer) enqueue(ctx context.Context, i int) error {
	_, err := p.client.Insert(ctx, newOrder(i, time.Time{}), nil)
	return err
}

// enqueueAll stores jobs 1 to n in batches, `atOnce` of them under way.
func (p *peer) enqueueAll(ctx context.Context, n, atOnce int, due time.Time) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for from := 1; from <= n; from += batchSize {
		group.Go(func() error { return p.enqueueRange(ctx, from, min(n, from+batchSize-1), due) })
	}
	return group.Wait()
}

// enqueueRange stores jobs `from` to `to`, both included, as one batch. InsertManyFast uses COPY
// and is what River advises for many jobs.
func (p *peer) enqueueRange(ctx context.Context, from, to int, due time.Time) error {
	params := make([]river.InsertManyParams, 0, to-from+1)
	for i := from; i <= to; i++ {
		params = append(params,
			river.InsertManyParams{Args: newOrder(i, due), InsertOpts: insertOpts(due)})
	}
	_, err := p.client.InsertManyFast(ctx, params)
	return err
}

// settle does what autovacuum has done to rows stored some time ago.
func (p *peer) settle(ctx context.Context) error {
	_, err := p.pool.Exec(ctx, `VACUUM (ANALYZE) river_job`)
	return err
}

// work starts the workers; `samples` is how many handlers' lateness is kept.
func (p *peer) work(ctx context.Context, samples int) error {
	p.late = make([]float64, samples)
	return p.client.Start(ctx)
}

// warmUp puts n jobs through and forgets them; it returns how long storing them took.
func (p *peer) warmUp(ctx context.Context, n int, due time.Time) (time.Duration, error) {
	started := time.Now()
	if err := p.enqueueRange(ctx, 1, n, due); err != nil {
		return 0, err
	}
	took := time.Since(started)
	if err := p.finish(ctx, n); err != nil {
		return 0, err
	}
	p.begun.Store(0)
	p.handled.Store(0)
	return took, nil
}

// finish waits until n handlers have run and their completion is stored.
func (p *peer) finish(ctx context.Context, n int) error {
	for p.handled.Load() < int64(n) {
		if err := pause(ctx); err != nil {
			return fmt.Errorf("%d of %d jobs handled: %w", p.handled.Load(), n, err)
		}
	}
	for {
		var left bool
		err := p.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM river_job WHERE state IN
			('available', 'pending', 'retryable', 'running', 'scheduled'))`).Scan(&left)
		if err != nil {
			return err
		}
		if !left {
			break
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
	if begun := p.begun.Load(); begun != int64(n) {
		return fmt.Errorf("%d handlers ran for %d jobs", begun, n)
	}
	return nil
}

func pause(ctx context.Context) error {
	time.Sleep(time.Millisecond)
	return ctx.Err()
}

func (p *peer) first() time.Time { return time.Unix(0, p.firstNs.Load()) }

// lateness is how late each handler began, in milliseconds; after finish.
func (p *peer) lateness() []float64 { return p.late }
