// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sync/semaphore"
)

// maxSessions bounds the sessions on one connection: sshd allows ten
// (MaxSessions), and two are left for whoever shares the connection's limit
// unknown to us. Streams are no sessions and are not bounded.
const maxSessions = 8

// keepaliveRequest is answered by every server, if only with a refusal.
const keepaliveRequest = "keepalive@openssh.com"

// maxMisses is how many keepalives may stay without an answer.
const maxMisses = 2

var (
	errClosedHere = errors.New("it was closed here")
	errSilent     = errors.New("the host has not answered any more")
)

// connection is one authenticated connection.
type connection struct {
	host     *Host
	client   *ssh.Client
	raw      *transport
	sessions *semaphore.Weighted
	done     chan struct{} // closed when it has ended

	mu    sync.Mutex
	cause error // why it ended; the first reason counts
}

// newConnection takes over a client and watches it to its end.
func (h *Host) newConnection(client *ssh.Client, raw *transport) *connection {
	c := &connection{host: h, client: client, raw: raw, sessions: semaphore.NewWeighted(maxSessions), done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	h.pool.running.Add(2)
	go func() {
		defer h.pool.running.Done()
		err := client.Wait()
		cancel()
		c.close(err)
		close(c.done)
	}()
	go func() {
		defer h.pool.running.Done()
		c.keepalive(ctx)
	}()
	return c
}

// alive tells whether the connection has not ended yet, as far as is known.
func (c *connection) alive() bool {
	select {
	case <-c.done:
		return false
	default:
		return c.raw.ended() == nil
	}
}

// close ends the connection for a reason. It closes what is under the
// protocol, which unblocks everything: closing by the protocol's own messages
// waits for a peer that may be gone.
func (c *connection) close(cause error) {
	c.mu.Lock()
	if c.cause == nil {
		c.cause = cause
	}
	c.mu.Unlock()
	c.raw.Close()
}

// lost is the error for what was under way when the connection ended.
func (c *connection) lost() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	cause := c.cause
	if cause == nil {
		cause = c.raw.ended()
	}
	if cause == nil {
		cause = errors.New("for no reason that is known")
	}
	lost := unreachable(c.host.Name(), cause, "%s", ErrLost)
	lost.Err = lostError{lost.Err}
	return lost
}

// keepalive asks the peer for a sign of life, until the context ends or the
// peer has not answered twice.
func (c *connection) keepalive(ctx context.Context) {
	options := c.host.pool.options
	answers := make(chan struct{}, 1)
	missed, waiting := 0, false
	for options.Clock.Sleep(ctx, options.Keepalive) == nil {
		select {
		case <-answers:
			missed, waiting = 0, false
		default:
		}
		if waiting {
			if missed++; missed == maxMisses {
				c.close(errSilent)
				return
			}
			continue // the question is still open: a second one says no more
		}
		waiting = true
		// The question may block too, when the peer reads nothing any more.
		go func() {
			if _, _, err := c.client.SendRequest(keepaliveRequest, true, nil); err == nil {
				answers <- struct{}{}
			}
		}()
	}
}
