// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func (a *app) forwardCommand() *cobra.Command {
	var opts lifecycle.ForwardOptions
	cmd := &cobra.Command{
		Use:   "forward ID [[LOCAL:]PORT…]",
		Short: "Make ports of a sandbox on a remote engine reachable on this machine",
		Long: "Make ports of a sandbox reachable on this machine's loopback, through the connection to its backend, until interrupted. " +
			"PORT is the name that the profile gives a port; without one, all are forwarded. LOCAL is the port to listen on here, " +
			"0 for any that is free. Without it, it is the one that the sandbox's endpoint shows, where that is free.\n\n" +
			"A port that this machine reaches by itself is not forwarded, only shown.",
		Example: "  sandboxer forward sbx-0123456789abcdefghij\n  sandboxer forward sbx-0123456789abcdefghij 8080:web",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("forward wants the id of a sandbox")
			}
			_, err := parseForwards(args[1:])
			return errors.Join(sandboxID(args[0]), err)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			wanted, err := parseForwards(args[1:])
			if err != nil {
				return err
			}
			return a.use(func(runtime *config.Runtime) error {
				return a.forward(cmd.Context(), runtime.Manager, args[0], opts, wanted)
			})
		},
	}
	backendFlag(cmd, &opts.Backend, whereItIs)
	return cmd
}

// forwarding is one port to forward.
type forwarding struct {
	port  string
	local int // -1 is the endpoint's
}

func parseForwards(args []string) ([]forwarding, error) {
	var wanted []forwarding
	for _, arg := range args {
		f := forwarding{port: arg, local: -1}
		if local, port, found := strings.Cut(arg, ":"); found {
			number, err := strconv.ParseUint(local, 10, 16)
			if err != nil || port == "" {
				return nil, usage("%.80q is not PORT or LOCAL:PORT", arg)
			}
			f = forwarding{port: port, local: int(number)}
		}
		if slices.ContainsFunc(wanted, func(other forwarding) bool { return other.port == f.port }) {
			return nil, usage("the port %.80q is named twice", f.port)
		}
		wanted = append(wanted, f)
	}
	return wanted, nil
}

// forward listens for every port and returns when the context ends, or at
// once when there is nothing to forward.
func (a *app) forward(ctx context.Context, m *lifecycle.Manager, id string, opts lifecycle.ForwardOptions, wanted []forwarding) error {
	s, err := m.Get(ctx, id, lifecycle.GetOptions{Backend: opts.Backend})
	if err != nil {
		return err
	}
	if len(s.Endpoints) == 0 {
		return sdk.Errorf(sdk.ErrNotFound, "sandbox %s publishes no port", id)
	}
	names := slices.Sorted(maps.Keys(s.Endpoints))
	if len(wanted) == 0 {
		for _, name := range names {
			wanted = append(wanted, forwarding{port: name, local: -1})
		}
	}
	var telling sync.Mutex
	tell := func(port string, err error) {
		telling.Lock()
		defer telling.Unlock()
		a.note("port %s: %s", port, err)
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	listening := false
	for _, f := range wanted {
		if _, found := s.Endpoints[f.port]; !found {
			return usage("sandbox %s has no port %.80q%s", id, f.port, sandbox.DidYouMean(f.port, names))
		}
		opts.Port = f.port
		way, err := m.Forward(ctx, id, opts)
		if err != nil {
			return err
		}
		if way.Dial == nil {
			if err := writeAll(a.Stdout, fmt.Sprintf("%s  %s  reached directly: nothing to forward\n", f.port, way.Address)); err != nil {
				return err
			}
			continue
		}
		listener, err := listenFor(ctx, f, way.Address)
		if err != nil {
			return fmt.Errorf("forward port %s: %w", f.port, err)
		}
		listening = true
		serving.Go(func() {
			serveForward(ctx, listener, way.Dial, func(err error) { tell(f.port, err) })
		})
		if err := writeAll(a.Stdout, fmt.Sprintf("%s  %s\n", f.port, listener.Addr())); err != nil {
			return err
		}
	}
	if listening {
		<-ctx.Done()
	}
	return nil
}

// listenFor listens on the local port that is asked for. The endpoint's own
// number is only a wish.
func listenFor(ctx context.Context, f forwarding, endpoint string) (net.Listener, error) {
	var config net.ListenConfig
	if f.local >= 0 {
		return config.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(f.local)))
	}
	_, port, err := net.SplitHostPort(endpoint)
	if err != nil {
		return nil, err
	}
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
	if errors.Is(err, syscall.EADDRINUSE) {
		return config.Listen(ctx, "tcp", "127.0.0.1:0")
	}
	return listener, err
}

// serveForward carries connections until the context ends. One that can't be
// opened at the other end is told, and is no end of the others.
func serveForward(ctx context.Context, listener net.Listener, dial func(context.Context) (net.Conn, error), tell func(error)) {
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	var carrying sync.WaitGroup
	defer carrying.Wait()
	for {
		here, err := listener.Accept()
		if err != nil {
			if ctx.Err() == nil {
				tell(err)
			}
			return
		}
		carrying.Go(func() {
			defer here.Close()
			there, err := dial(ctx)
			if err != nil {
				if ctx.Err() == nil {
					tell(err)
				}
				return
			}
			carry(ctx, here, there)
		})
	}
}

// carry moves both directions of a connection, and the end of each by itself.
func carry(ctx context.Context, here, there net.Conn) {
	defer there.Close()
	stop := context.AfterFunc(ctx, func() { here.Close(); there.Close() })
	defer stop()
	var both sync.WaitGroup
	move := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
			err = half.CloseWrite()
		}
		if err != nil {
			// Broken in one direction is broken in both.
			here.Close()
			there.Close()
		}
	}
	both.Go(func() { move(there, here) })
	both.Go(func() { move(here, there) })
	both.Wait()
}
