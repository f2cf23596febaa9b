// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"context"
	"sync"
)

// Host is one host, seen as one user. Its connection is made when it is first
// needed, and made again when it is needed after it ended. It is safe for
// concurrent use.
type Host struct {
	pool   *Pool
	target *target
	via    *Host // the jump host before it; nil when there is none
	key    string

	mu      sync.Mutex
	current *connection // nil before the first and after the last
	dial    *dialing    // under way; nil when there is none
}

// dialing is one dial that any number of callers wait for.
type dialing struct {
	cancel  context.CancelCauseFunc
	waiting int // callers; the last one to leave ends it
	done    chan struct{}
	conn    *connection // after done
	err     error       // after done
}

// Name returns user@host:port.
func (h *Host) Name() string { return h.target.name() }

// Connect makes sure that there is a connection.
func (h *Host) Connect(ctx context.Context) error {
	_, err := h.connection(ctx)
	return err
}

// Close ends the connection and everything that waits on it. The host can be
// used again, which dials again.
func (h *Host) Close() error {
	h.mu.Lock()
	dial := h.dial
	h.mu.Unlock()
	if dial != nil {
		dial.cancel(errClosedHere)
		<-dial.done
	}
	h.mu.Lock()
	current := h.current
	h.current = nil
	h.mu.Unlock()
	if current != nil {
		current.close(errClosedHere)
		<-current.done
	}
	return nil
}

// connection returns the live connection, dialling when there is none. Dials
// to one host are never made at once: its sshd would drop some of them.
func (h *Host) connection(ctx context.Context) (*connection, error) {
	if err := ctx.Err(); err != nil {
		return nil, contextError(ctx, h.Name(), "connecting")
	}
	h.mu.Lock()
	if h.current != nil && h.current.alive() {
		defer h.mu.Unlock()
		return h.current, nil
	}
	d := h.dial
	if d == nil {
		d = h.startDial(ctx)
	}
	d.waiting++
	h.mu.Unlock()
	select {
	case <-d.done:
		return d.conn, d.err
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.waiting--; d.waiting == 0 {
		d.cancel(context.Canceled)
		if h.dial == d {
			h.dial = nil // whoever comes next begins anew
		}
	}
	return nil, contextError(ctx, h.Name(), "connecting")
}

// startDial begins a dial that outlives the caller that began it as long as
// somebody waits for it. The host is locked.
func (h *Host) startDial(ctx context.Context) *dialing {
	dialCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	d := &dialing{cancel: cancel, done: make(chan struct{})}
	h.dial = d
	h.pool.running.Add(1)
	go func() {
		defer h.pool.running.Done()
		defer cancel(nil)
		ctx, stop := context.WithTimeout(dialCtx, h.target.timeout)
		defer stop()
		d.conn, d.err = h.connect(ctx)
		h.mu.Lock()
		defer h.mu.Unlock()
		defer close(d.done)
		if h.dial != d { // abandoned, and perhaps replaced
			if d.conn != nil {
				d.conn.close(errClosedHere)
			}
			return
		}
		h.dial = nil
		if d.err == nil {
			h.current = d.conn
		}
	}()
	return d
}
