// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"os"
	"os/user"
	"strings"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
)

// Options are the options of [NewPool]. The zero value is for production.
type Options struct {
	// Keepalive is how often the peer is asked for a sign of life. After two
	// questions without an answer the connection is closed. Zero is 15 s.
	Keepalive time.Duration
	// Clock paces keepalives and retries; nil is the machine's.
	Clock clock.Clock
	// Getenv finds the agent; nil is os.Getenv.
	Getenv func(string) string
	// Home and User are those of the local user; empty is asked of the system.
	Home, User string
}

const defaultKeepalive = 15 * time.Second

// Pool holds the hosts of one process, one connection each. It is safe for
// concurrent use.
type Pool struct {
	options Options
	local   local

	mu     sync.Mutex
	hosts  map[string]*Host // by everything that decides who is reached and how
	closed bool
	// running counts the goroutines that end with their connection.
	running sync.WaitGroup
}

// NewPool returns a pool. Hosts that several users of one process share come
// from one pool.
func NewPool(options Options) *Pool {
	if options.Keepalive == 0 {
		options.Keepalive = defaultKeepalive
	}
	if options.Clock == nil {
		options.Clock = clock.System{}
	}
	if options.Getenv == nil {
		options.Getenv = os.Getenv
	}
	if options.Home == "" {
		options.Home, _ = os.UserHomeDir() // without one, paths below ~/ name no file
	}
	if options.User == "" {
		options.User = localUser()
	}
	return &Pool{
		options: options, hosts: map[string]*Host{},
		local: local{home: options.Home, user: options.User, getenv: options.Getenv},
	}
}

// localUser returns the name of the user, without the domain that Windows
// puts before it.
func localUser() string {
	u, err := user.Current()
	if err != nil {
		return os.Getenv("USER")
	}
	return u.Username[strings.LastIndex(u.Username, `\`)+1:]
}

// Shared is the pool of this process.
var Shared = sync.OnceValue(func() *Pool { return NewPool(Options{}) })

var errPoolClosed = errors.New("the SSH connections are closed")

// Host returns the host of an address. It reads the SSH configuration file
// that is named, if any, and uses no network. Errors of the configuration
// have paths that begin with at, like "ssh".
func (p *Pool) Host(address Address, config Config, at string) (*Host, error) {
	t, hops, err := resolve(p.local, address, config, at)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errPoolClosed
	}
	// A jump host is a host like any other: what goes through it shares one
	// connection to it.
	var via *Host
	for _, hop := range append(hops, t) {
		via = p.host(hop, via)
	}
	return via, nil
}

// host returns the one host for a target and the way to it. The pool is locked.
func (p *Pool) host(t *target, via *Host) *Host {
	key := t.key()
	if via != nil {
		key = via.key + key
	}
	if h, found := p.hosts[key]; found {
		return h
	}
	h := &Host{pool: p, target: t, via: via, key: key}
	p.hosts[key] = h
	return h
}

// key is equal for two targets that may share a connection: same user and
// host, proven in the same way.
func (t *target) key() string {
	secrets := []string{string(t.config.PrivateKey), string(t.config.Passphrase), string(t.config.Password)}
	text, _ := json.Marshal([]any{t.name(), t.alias, t.config, secrets, t.keyFiles, t.identities, t.knownHosts}) // strings always encode
	sum := sha256.Sum256(text)
	return string(sum[:])
}

// Close ends every connection, and everything that waits on them.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	hosts := p.hosts
	p.hosts = map[string]*Host{}
	p.mu.Unlock()
	for _, h := range hosts {
		h.Close()
	}
	p.running.Wait()
	return nil
}
