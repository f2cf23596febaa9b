// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2btest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
)

// Options are the options of [New]. None is needed.
type Options struct {
	Clock clock.Clock // the service's; default the machine's
	// Dir holds the files of sandboxes and snapshots. The default is a
	// temporary directory that Close removes.
	Dir string
	// Keys are the API keys of the team; none accepts every key of the form.
	Keys []string
	// MaxRun is how long one run of a sandbox may last at most, as the plan
	// has it. Default 24 h.
	MaxRun time.Duration
	// Concurrent is how many sandboxes may run at once. Default 100.
	Concurrent int
	// EnvdVersion is the version that sandboxes say they have. Default 0.6.13.
	EnvdVersion string
	// How long a transition takes. Default 0.
	StartTakes, PauseTakes, SnapshotTakes, KillTakes time.Duration
	// EdgeLag is how long the edge answers 502 after a create or a resume.
	EdgeLag time.Duration
	// OnlyV1 leaves out the routes of v2 that create and resume, as servers
	// of before 2026 do.
	OnlyV1 bool
	// NoIdempotency ignores the header Idempotency-Key, as the service does
	// where its flag is off.
	NoIdempotency bool
}

// evictEvery is how often the evictor looks, as the vendor's does.
const evictEvery = 50 * time.Millisecond

// Server plays the service. It is safe for concurrent use.
type Server struct {
	options Options
	faults  faults
	routes  *http.ServeMux

	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	temp    bool // Dir is ours

	mu        sync.Mutex
	machines  map[string]*machine  // by sandbox id
	templates map[string]*template // by template id
	aliases   map[string]string    // to template ids
	idem      map[string]*replay   // by Idempotency-Key
	requests  []Request
	number    int64
}

// Request is one request as it came.
type Request struct {
	Method  string
	Path    string
	Query   string // raw
	Header  http.Header
	Body    []byte // of at most 64 KiB
	Sandbox string // of a request for a sandbox
	Status  int    // of the answer; 0 when there was none
}

// New returns a server with the template base and no sandboxes.
func New(options Options) (*Server, error) {
	if options.Clock == nil {
		options.Clock = clock.System{}
	}
	if options.MaxRun == 0 {
		options.MaxRun = 24 * time.Hour
	}
	if options.Concurrent == 0 {
		options.Concurrent = 100
	}
	if options.EnvdVersion == "" {
		options.EnvdVersion = "0.6.13"
	}
	s := &Server{
		options: options, machines: map[string]*machine{}, templates: map[string]*template{}, aliases: map[string]string{}, idem: map[string]*replay{},
	}
	if options.Dir == "" {
		dir, err := os.MkdirTemp("", "e2b-test-server-")
		if err != nil {
			return nil, err
		}
		s.options.Dir, s.temp = dir, true
	}
	if err := os.MkdirAll(s.options.Dir, 0o700); err != nil {
		return nil, err
	}
	s.faults.server = s
	s.addTemplate("base")
	s.addTemplate("code-interpreter-v1")
	s.routes = s.router()
	s.life, s.end = context.WithCancel(context.Background())
	s.running.Go(func() {
		for s.options.Clock.Sleep(s.life, evictEvery) == nil {
			s.evict()
		}
	})
	return s, nil
}

// Close ends every sandbox and its processes, and removes what is on disk.
func (s *Server) Close() error {
	s.end()
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.machines))
	s.mu.Unlock()
	for _, m := range all {
		m.root.Close()
	}
	s.running.Wait()
	if s.temp {
		return os.RemoveAll(s.options.Dir)
	}
	return nil
}

func (s *Server) now() time.Time { return s.options.Clock.Now().UTC().Truncate(time.Microsecond) }

// pause waits on the service's clock, or until the server ends.
func (s *Server) pause(d time.Duration) {
	if d > 0 {
		_ = s.options.Clock.Sleep(s.life, d) // an ended server has nothing to wait for
	}
}

// Requests returns what has been asked since the start or the last Forget.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Forget drops the requests that were kept.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}

// Truth is a sandbox as it truly is, whatever the service says.
type Truth struct {
	ID       string
	Metadata map[string]string
	State    string // running, pausing, snapshotting, killing or paused
	Stored   bool   // a stored image would keep it listed after a kill
	StartAt  time.Time
	EndAt    time.Time
}

// Sandboxes returns every sandbox that there truly is, by id.
func (s *Server) Sandboxes() []Truth {
	s.evict()
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Truth
	for _, id := range slices.Sorted(maps.Keys(s.machines)) {
		m := s.machines[id]
		if !m.exists() {
			continue
		}
		state := string(m.state)
		if m.state == none {
			state = "paused"
		}
		all = append(all, Truth{ID: id, Metadata: maps.Clone(m.meta), State: state, Stored: m.stored != nil, StartAt: m.started, EndAt: m.ends})
	}
	return all
}

// Snapshots returns the ids of the snapshots that there are.
func (s *Server) Snapshots() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, t := range s.templates {
		if t.source != "" {
			all = append(all, t.ref())
		}
	}
	slices.Sort(all)
	return all
}

// Kill ends a sandbox as a failure of the vendor's would: early, and nothing
// of it is stored.
func (s *Server) Kill(id string) error {
	s.mu.Lock()
	m := s.machines[id]
	if m == nil || !m.exists() {
		s.mu.Unlock()
		return fmt.Errorf("no sandbox %q", id)
	}
	s.drop(m)
	s.mu.Unlock()
	m.root.Close()
	return nil
}

// drop forgets a sandbox. The caller holds the lock and closes its root after it.
func (s *Server) drop(m *machine) {
	m.state, m.stored = none, nil
	delete(s.machines, m.id)
}

const idAlphabet = "abcdefghijklmnopqrstuvwxyz0123456789"

func randomID(n int) string {
	random := make([]byte, n)
	_, _ = rand.Read(random) // never fails
	for i, b := range random {
		random[i] = idAlphabet[int(b)%len(idAlphabet)]
	}
	return string(random)
}

// token is a sandbox's access token: bound to its id, so the same after a
// resume.
func token(kind, id string) string {
	sum := sha256.Sum256([]byte("e2btest " + kind + " " + id))
	return hex.EncodeToString(sum[:])
}

// imageDir makes a directory for files that are kept.
func (s *Server) imageDir() (string, error) {
	s.mu.Lock()
	s.number++
	dir := filepath.Join(s.options.Dir, fmt.Sprintf("image-%d", s.number))
	s.mu.Unlock()
	return dir, os.MkdirAll(dir, 0o755)
}

// errClosedServer is met by what is under way when the server ends.
var errClosedServer = errors.New("the server ends")
