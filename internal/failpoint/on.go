// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build failpoints

package failpoint

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
)

// On reports whether this is the crash suite's own build.
const On = true

// SocketKey is the environment variable with the path of the suite's socket.
const SocketKey = "SANDBOXER_FAILPOINTS"

// suite is the connection to the crash suite; nil when there is none.
var suite struct {
	sync.Mutex
	dialled bool
	conn    net.Conn
	answers *bufio.Reader
}

// Hit tells the suite that the process is at a point and returns when the
// suite answers, with the error that it answers with.
func Hit(p Point) error {
	suite.Lock()
	defer suite.Unlock()
	if !suite.dialled {
		suite.dialled = true
		if path := os.Getenv(SocketKey); path != "" {
			conn, err := new(net.Dialer).DialContext(context.Background(), "unix", path)
			if err != nil {
				panic("failpoint: " + err.Error())
			}
			suite.conn, suite.answers = conn, bufio.NewReader(conn)
		}
	}
	if suite.conn == nil {
		return nil
	}
	_, err := fmt.Fprintln(suite.conn, p)
	var answer string
	if err == nil {
		answer, err = suite.answers.ReadString('\n')
	}
	if err != nil {
		suite.conn = nil // the suite has let go of this process
		return nil
	}
	if answer = strings.TrimSpace(answer); answer != "" {
		return fmt.Errorf("failpoint %s: %s", p, answer)
	}
	return nil
}

// Environ returns what a process must have in its environment to reach the
// suite.
func Environ() []string {
	if path := os.Getenv(SocketKey); path != "" {
		return []string{SocketKey + "=" + path}
	}
	return nil
}
