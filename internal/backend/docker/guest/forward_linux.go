// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"time"
)

const dialDeadline = 10 * time.Second

// forward carries connections from ports of this container to a sandbox,
// until it is killed.
func forward(args []string) error {
	failed := make(chan error, len(args))
	for _, arg := range args {
		port, to, ok := strings.Cut(arg, "=")
		if !ok {
			return errors.New("PORT=HOST:PORT is wanted")
		}
		listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", ":"+port)
		if err != nil {
			return err
		}
		go func() { failed <- accept(listener, to) }()
	}
	return <-failed
}

func accept(listener net.Listener, to string) error {
	for {
		client, err := listener.Accept()
		if err != nil {
			return err
		}
		go carry(client, to)
	}
}

func carry(client net.Conn, to string) {
	defer client.Close()
	dialer := net.Dialer{Timeout: dialDeadline}
	sandbox, err := dialer.DialContext(context.Background(), "tcp", to)
	if err != nil {
		return // the client sees its connection end, as with a closed port
	}
	defer sandbox.Close()
	done := make(chan struct{}, 2)
	half := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		if tcp, ok := to.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
		done <- struct{}{}
	}
	go half(sandbox, client)
	go half(client, sandbox)
	<-done
	<-done
}
