// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/pb"
)

// The metadata of a call.
const (
	callKey    = "sandboxer-call"
	timeoutKey = "sandboxer-timeout"
)

// cancelMethod is not counted as a call: it is how one is ended.
var cancelMethod = pb.Extension_Cancel_FullMethodName

// calls are the calls in flight in an extension. They can be cancelled one by
// one, or all at once when the process is told to end; then no call begins
// any more, and those that are there may finish a short save step.
type calls struct {
	mu       sync.Mutex
	stopping bool
	byName   map[string]context.CancelFunc
	inFlight map[*context.CancelFunc]struct{}
	idle     chan struct{} // closed when stopping and nothing is in flight

	first func() // before the first call begins; may be nil
	once  sync.Once

	// standing is the context of go-plugin's own streams, which last as long
	// as the connection.
	standing     context.Context
	stopStanding context.CancelFunc
}

func newCalls() *calls {
	standing, stop := context.WithCancel(context.Background())
	return &calls{
		byName: map[string]context.CancelFunc{}, inFlight: map[*context.CancelFunc]struct{}{}, idle: make(chan struct{}),
		standing: standing, stopStanding: stop,
	}
}

// begin registers a call and returns its context, and what to do at its end.
func (c *calls) begin(ctx context.Context) (context.Context, func(), error) {
	c.once.Do(func() {
		if c.first != nil {
			c.first()
		}
	})
	incoming, _ := metadata.FromIncomingContext(ctx)
	value := func(key string) string {
		if values := incoming.Get(key); len(values) > 0 {
			return values[0]
		}
		return ""
	}
	ctx, cancel := context.WithCancel(ctx)
	release := cancel
	if left, err := time.ParseDuration(value(timeoutKey)); err == nil {
		var stopTimer context.CancelFunc
		ctx, stopTimer = context.WithTimeout(ctx, left)
		release = func() { stopTimer(); cancel() }
	}
	name := value(callKey)

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping {
		release()
		return nil, nil, sdk.Errorf(sdk.ErrUnreachable, "the extension is ending")
	}
	key := &cancel
	c.inFlight[key] = struct{}{}
	if name != "" {
		c.byName[name] = cancel
	}
	return ctx, func() {
		release()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.inFlight, key)
		delete(c.byName, name)
		c.markIdle()
	}, nil
}

// markIdle closes idle when the last call has ended. The lock is held.
func (c *calls) markIdle() {
	if !c.stopping || len(c.inFlight) > 0 {
		return
	}
	select {
	case <-c.idle:
	default:
		close(c.idle)
	}
}

// cancel cancels one call and reports whether it is in flight.
func (c *calls) cancel(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	cancel, ok := c.byName[name]
	if ok {
		cancel()
	}
	return ok
}

// stop cancels every call, and waits until they have ended or grace is over.
func (c *calls) stop(grace time.Duration) {
	c.mu.Lock()
	c.stopping = true
	for cancel := range c.inFlight {
		(*cancel)()
	}
	c.markIdle()
	c.mu.Unlock()

	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.idle:
	case <-timer.C:
	}
}

// serverOptions returns the options of an extension's gRPC server.
func (c *calls) serverOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.ChainUnaryInterceptor(c.unary), grpc.ChainStreamInterceptor(c.stream),
	}
}

// counted reports whether a method is a call of the contract. go-plugin has
// services of its own on the same connection.
func counted(method string) bool {
	return strings.HasPrefix(method, "/"+pb.Extension_ServiceDesc.ServiceName+"/") && method != cancelMethod
}

func (c *calls) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if !counted(info.FullMethod) {
		return next(ctx, req)
	}
	ctx, end, err := c.begin(ctx)
	if err != nil {
		return nil, statusOf(err)
	}
	defer end()
	resp, err := next(ctx, req)
	return resp, statusOf(err)
}

func (c *calls) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if strings.HasPrefix(info.FullMethod, "/plugin.GRPCBroker/") {
		// Nothing here calls back, and a broker is one more way in.
		return status.Error(codes.Unimplemented, "this extension has no broker")
	}
	if !counted(info.FullMethod) {
		ctx, cancel := context.WithCancel(stream.Context())
		defer cancel()
		defer context.AfterFunc(c.standing, cancel)()
		return next(srv, &callStream{stream, ctx})
	}
	ctx, end, err := c.begin(stream.Context())
	if err != nil {
		return statusOf(err)
	}
	defer end()
	return statusOf(next(srv, &callStream{stream, ctx}))
}

// callStream is a stream with the context of its call.
type callStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *callStream) Context() context.Context { return s.ctx }
