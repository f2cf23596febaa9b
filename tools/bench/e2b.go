// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b/e2btest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// cloudCalls is how many calls of each side are compared, for each run.
	cloudCalls = 100
	// cloudBound is how many milliseconds a call may take beyond its bare round
	// trip, at the hundredth that takes the longest.
	cloudBound = 5
)

// e2bBench measures what the E2B backend adds to a round trip to the service,
// with the one that plays it in the tests.
func e2bBench(ctx context.Context, b *bench) (figures []figure, err error) {
	server, err := e2btest.New(e2btest.Options{Dir: filepath.Join(b.scratch, "e2b")})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	web := &http.Server{Handler: server, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()
	defer func() {
		_ = web.Close() // its end is what Serve tells
		if end := <-served; !errors.Is(end, http.ErrServerClosed) {
			err = errors.Join(err, end)
		}
	}()
	address := "http://" + listener.Addr().String()
	config, err := json.Marshal(map[string]string{"api_url": address, "sandbox_url": address, "api_key": benchKey, "state_dir": filepath.Join(b.scratch, "e2b-state")})
	if err != nil {
		return nil, err
	}
	const fleet = "bench"
	backend := e2b.New(e2b.Options{})
	if _, err := backend.Configure(ctx, sdk.ConfigureOptions{Backend: "e2b", Fleet: fleet, Config: config}); err != nil {
		return nil, err
	}
	const id = "sbx-00000000000000000001"
	now := time.Now()
	made, err := backend.Create(ctx, sdk.CreateOptions{
		ID: id, Profile: sdk.Profile{Name: "bench"}, Identity: sdk.Identity{ID: id, Fleet: fleet, Incarnation: 1, CreatedAt: now},
		ExpiresAt: now.Add(time.Hour), MaxExpiresAt: now.Add(time.Hour),
	})
	if err != nil {
		return nil, err
	}
	target := sdk.Target{ID: id, Ref: made.Sandbox.Ref, Fleet: fleet}
	measured, err := interleave(ctx, cloudCalls*b.runs,
		func(ctx context.Context) (time.Duration, error) {
			return timed(func() error {
				_, err := backend.Get(ctx, sdk.GetOptions{Target: target})
				return err
			})
		},
		func(ctx context.Context) (time.Duration, error) {
			return timed(func() error { return bareGet(ctx, address+"/sandboxes/"+target.Ref) })
		})
	if err != nil {
		return nil, err
	}
	ours, bare := slowest(measured[0]), slowest(measured[1])
	return []figure{{
		name: "e2b: a call beyond its bare round trip, p99", value: float64(ours-bare) / 1e6, unit: "ms", bound: cloudBound,
		detail: fmt.Sprintf("%s against %s, p99 of %d", short(ours), short(bare), len(measured[0])),
	}}, nil
}

const benchKey = "e2b_bench"

// bareGet makes the request that the backend makes, and drops the answer.
func bareGet(ctx context.Context, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("X-API-Key", benchKey)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// slowest returns the value that one in a hundred is beyond.
func slowest(values []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)*99/100]
}
