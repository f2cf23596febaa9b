// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Command modal-test-server runs a server that plays Modal, until it is
// interrupted, for whoever wants to try without an account.
//
//	cd extensions/modal && go run ./modaltest/cmd/modal-test-server
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/modaltest"
)

func main() {
	address := flag.String("address", "127.0.0.1:0", "address to listen on; the vendor's clients need a loopback address of IPv4")
	flag.Parse()
	if err := run(*address); err != nil {
		fmt.Fprintln(os.Stderr, "modal-test-server:", err)
		os.Exit(1)
	}
}

func run(address string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server, err := modaltest.New(modaltest.Options{Address: address})
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stdout, "export MODAL_SERVER_URL=%s MODAL_TOKEN_ID=ak-test MODAL_TOKEN_SECRET=as-test\n", server.URL())
	<-ctx.Done()
	return server.Close()
}
