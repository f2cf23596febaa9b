// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// The program serves a stand-in for E2B on this machine, for whoever wants to
// try sandboxer's backend, or the vendor's own clients, without an account.
// See [e2btest] for what of it is real: commands run as the user who starts
// the program, with no isolation that would hold.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b/e2btest"
)

func main() {
	address := flag.String("listen", "127.0.0.1:3999", "address to listen on; port 0 takes a free one")
	dir := flag.String("dir", "", "directory for the files of sandboxes; the default is a temporary one")
	maxRun := flag.Duration("max-run", 24*time.Hour, "the plan's longest run of a sandbox")
	concurrent := flag.Int("concurrent", 100, "the plan's number of sandboxes that run at once")
	onlyV1 := flag.Bool("only-v1", false, "leave out the routes of v2 that create and resume")
	flag.Parse()
	if err := serve(*address, e2btest.Options{Dir: *dir, MaxRun: *maxRun, Concurrent: *concurrent, OnlyV1: *onlyV1}); err != nil {
		fmt.Fprintln(os.Stderr, "e2b-test-server:", err)
		os.Exit(1)
	}
}

func serve(address string, options e2btest.Options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server, err := e2btest.New(options)
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }() // what it could not remove is in a temporary directory
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stdout, "export E2B_API_URL=http://%[1]s E2B_SANDBOX_URL=http://%[1]s E2B_API_KEY=e2b_test\n", listener.Addr())
	web := &http.Server{Handler: server, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 620 * time.Second}
	context.AfterFunc(ctx, func() { _ = web.Close() })
	if err := web.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
