// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package modaltest

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
)

// Options are the options of [New]. None is needed.
type Options struct {
	Clock clock.Clock // the service's; default the machine's
	// Dir holds the files of sandboxes and images. The default is a temporary
	// directory that Close removes.
	Dir string
	// Address is what to listen on; default 127.0.0.1 and a free port. The
	// vendor's clients need a loopback address of IPv4.
	Address string
	// Tokens are the token ids that are known, with their secrets; none
	// accepts every pair.
	Tokens map[string]string
	// Page is how many sandboxes a page of a listing holds. Default 100.
	Page int
	// Concurrent is how many sandboxes may run at once. Default 1000.
	Concurrent int
	// NoDedup carries a create out again whose idempotency key has been seen.
	// Whether the vendor does is not known.
	NoDedup bool
	// NoInfo leaves everything out of a listing but id, app, time of creation
	// and tags. Which fields the vendor fills is not known.
	NoInfo bool
	// StartTakes is how long a sandbox is not scheduled after its create.
	StartTakes time.Duration
	// SnapshotTakes is how long a filesystem snapshot takes.
	SnapshotTakes time.Duration
}

// maxLifetime is the longest lifetime that can be asked for, in seconds.
const maxLifetime = 24 * 60 * 60

// evictEvery is how often ends are looked for.
const evictEvery = 50 * time.Millisecond

// maxMessage bounds a message: clients write their input in one.
const maxMessage = 100 << 20

// Server plays the service. It is safe for concurrent use.
type Server struct {
	options  Options
	faults   faults
	keys     keys
	grpc     *grpc.Server
	listener net.Listener

	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	temp    bool // Dir is ours

	mu        sync.Mutex
	apps      map[string]*app     // by environment and name
	images    map[string]*image   // by id
	recipes   map[string]string   // to image ids
	published map[string]string   // names to image ids
	secrets   map[string]*secret  // by id
	volumes   map[string]*volume  // by environment and name
	sandboxes map[string]*sandbox // by id
	tasks     map[string]*sandbox // by task id
	memories  map[string]*memory  // by snapshot id
	replays   map[string]string   // idempotency keys to sandbox ids
	last      time.Time           // when the last sandbox was made
	number    int64
	requests  []Request
}

// Request is one call as it came.
type Request struct {
	Method   string // without the service
	Message  any    // the request's message; nil for one that is a stream
	Metadata map[string][]string
}

type app struct {
	id, name, environment string
	stopped               bool
}

type secret struct {
	id  string
	env map[string]string
}

type volume struct{ id, name, dir string }

// New returns a server that listens, with the environment main and nothing in
// it.
func New(options Options) (*Server, error) {
	if options.Clock == nil {
		options.Clock = clock.System{}
	}
	if options.Page == 0 {
		options.Page = 100
	}
	if options.Concurrent == 0 {
		options.Concurrent = 1000
	}
	if options.Address == "" {
		options.Address = "127.0.0.1:0"
	}
	s := &Server{
		options: options, apps: map[string]*app{}, images: map[string]*image{}, recipes: map[string]string{}, published: map[string]string{}, secrets: map[string]*secret{},
		volumes: map[string]*volume{}, sandboxes: map[string]*sandbox{}, tasks: map[string]*sandbox{}, memories: map[string]*memory{}, replays: map[string]string{},
	}
	s.faults.server = s
	_, _ = rand.Read(s.keys[:]) // never fails
	if options.Dir == "" {
		dir, err := os.MkdirTemp("", "modal-test-server-")
		if err != nil {
			return nil, err
		}
		s.options.Dir, s.temp = dir, true
	}
	if err := os.MkdirAll(s.options.Dir, 0o700); err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", options.Address)
	if err != nil {
		return nil, err
	}
	s.listener = listener
	s.grpc = grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage),
		// The clients ping every 30 s, also when nothing is under way.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(s.authorizeUnary, s.faults.unary),
		grpc.ChainStreamInterceptor(s.authorizeStream, s.faults.stream),
	)
	// Both services have a method SandboxWaitUntilReady, with different types.
	pb.RegisterModalClientServer(s.grpc, &controlPlane{server: s})
	pb.RegisterTaskCommandRouterServer(s.grpc, &router{server: s})
	s.life, s.end = context.WithCancel(context.Background())
	s.running.Go(func() {
		for s.options.Clock.Sleep(s.life, evictEvery) == nil {
			s.evict()
		}
	})
	s.running.Go(func() { _ = s.grpc.Serve(listener) }) // it ends with Close
	return s, nil
}

// URL is the address of the control plane, for MODAL_SERVER_URL.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// routerURL is the address of the router, as clients are told. The scheme is
// the one that they insist on; for a loopback address they speak plain text.
func (s *Server) routerURL() string { return "https://" + s.listener.Addr().String() }

// Close ends every sandbox and its processes, and removes what is on disk.
func (s *Server) Close() error {
	s.end()
	s.grpc.Stop()
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.sandboxes))
	s.mu.Unlock()
	for _, sb := range all {
		sb.jail.Close()
	}
	s.running.Wait()
	if s.temp {
		return os.RemoveAll(s.options.Dir)
	}
	return nil
}

func (s *Server) now() time.Time { return s.options.Clock.Now().UTC() }

// pause waits on the service's clock, or until the call or the server ends.
func (s *Server) pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	_ = s.options.Clock.Sleep(ctx, d) // whoever ended has nothing to wait for
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

// Calls returns how often each method was called since the start or the last
// Forget.
func (s *Server) Calls() map[string]int {
	counted := map[string]int{}
	for _, r := range s.Requests() {
		counted[r.Method]++
	}
	return counted
}

// Truth is a sandbox as it truly is, whatever the service says.
type Truth struct {
	ID      string
	Name    string
	Tags    map[string]string
	Running bool
	V1      bool
	Created time.Time
	Ends    time.Time // by its lifetime
}

// Sandboxes returns every sandbox that there ever was, by id.
func (s *Server) Sandboxes() []Truth {
	s.evict()
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []Truth{}
	for _, id := range slices.Sorted(maps.Keys(s.sandboxes)) {
		sb := s.sandboxes[id]
		all = append(all, Truth{ID: id, Name: sb.name, Tags: maps.Clone(sb.tags), Running: sb.result == nil, V1: sb.v1, Created: sb.created, Ends: sb.ends})
	}
	return all
}

// Running returns the sandboxes that run.
func (s *Server) Running() []Truth {
	return slices.DeleteFunc(s.Sandboxes(), func(t Truth) bool { return !t.Running })
}

// Images returns the ids of the images that filesystem snapshots made and that
// are kept.
func (s *Server) Images() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for id, i := range s.images {
		if i.snapshot && !i.expired(s.now()) {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all
}

// Kill ends a sandbox as a failure of the vendor's would.
func (s *Server) Kill(id string) error {
	s.mu.Lock()
	sb := s.sandboxes[id]
	if sb == nil || sb.result != nil {
		s.mu.Unlock()
		return fmt.Errorf("no sandbox %q runs", id)
	}
	finish := s.finish(sb, pb.GenericResult_GENERIC_STATUS_INTERNAL_FAILURE, 1, "the worker was lost")
	s.mu.Unlock()
	finish()
	return nil
}

// AddSecret makes a named secret.
func (s *Server) AddSecret(environment, name string, env map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secrets[environment+"/"+name] = &secret{id: mint("st-", alphanumeric, 22), env: maps.Clone(env)}
}

// AddVolume makes a volume.
func (s *Server) AddVolume(environment, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, err := s.newDir("volume")
	if err != nil {
		return err
	}
	s.volumes[environment+"/"+name] = &volume{id: mint("vo-", alphanumeric, 22), name: name, dir: dir}
	return nil
}

// newDir makes a directory for files that are kept. The caller holds the lock.
func (s *Server) newDir(kind string) (string, error) {
	s.number++
	dir := filepath.Join(s.options.Dir, fmt.Sprintf("%s-%d", kind, s.number))
	return dir, os.MkdirAll(dir, 0o755)
}

// The alphabets of ids.
const (
	alphanumeric = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	crockford    = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
)

// mint makes an id.
func mint(prefix, alphabet string, n int) string {
	random := make([]byte, n)
	_, _ = rand.Read(random) // never fails
	for i, b := range random {
		random[i] = alphabet[int(b)%len(alphabet)]
	}
	return prefix + string(random)
}
