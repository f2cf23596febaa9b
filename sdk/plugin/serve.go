// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// pluginEnv is what go-plugin and the host put into the environment for the
// handshake. It is of no use after it, and would mislead an extension that
// the extension starts.
var pluginEnv = []string{
	CookieKey, LifelineKey, clientCertKey, "PLUGIN_PROTOCOL_VERSIONS", "PLUGIN_MIN_PORT", "PLUGIN_MAX_PORT",
	"PLUGIN_MULTIPLEX_GRPC", goplugin.EnvUnixSocketDir, goplugin.EnvUnixSocketGroup,
}

// Serve serves an extension to the host that started this process, and
// returns when the host is done with it; main should then return. Started by
// hand it explains what the binary is for and exits with status 2.
//
// It looks at nothing but the environment and standard input, so a main that
// has other faces decides on them before it calls Serve.
func Serve(ext sdk.Extension) {
	if os.Getenv(CookieKey) != CookieValue {
		explain(os.Stderr, ext)
		os.Exit(2)
	}
	tlsConfig, certificate, err := extensionTLS(os.Getenv(clientCertKey))
	if err == nil {
		err = completeHandshake(certificate)
	}
	if err != nil {
		logf(slog.LevelError, "the extension can't be served", "error", err.Error())
		os.Exit(1)
	}
	socketDir := os.Getenv(goplugin.EnvUnixSocketDir)
	s := &serving{calls: newCalls()}
	s.calls.first = func() { os.Stdout, os.Stderr = stderr, stderr }

	// Without this a log line after the host's end would kill the process in
	// the middle of its save step. Notify, not Ignore: what is ignored stays
	// ignored in the commands that the extension starts.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(ends, syscall.SIGHUP)
	}
	go func() {
		sig := <-ends
		s.end("signal " + sig.String())
	}()
	if os.Getenv(LifelineKey) == LifelineStdin {
		lifeline := os.Stdin
		if null, err := os.Open(os.DevNull); err == nil {
			os.Stdin = null
		}
		go func() {
			_, _ = io.Copy(io.Discard, lifeline)
			s.end("the host is gone")
		}()
	}

	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: Handshake(),
		VersionedPlugins: map[int]goplugin.PluginSet{
			ProtocolVersion: {pluginName: &wire{server: &server{ext: ext, calls: s.calls}}},
		},
		GRPCServer:  s.newServer,
		TLSProvider: func() (*tls.Config, error) { return tlsConfig, nil },
		Logger:      hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: stderr, JSONFormat: true}),
	})

	s.end("the host closed the connection")
	if closer, ok := ext.(interface{ Close() error }); ok {
		closeWithin(closer, saveGrace)
	}
	if socketDir != "" {
		// The host removes it; a host that was killed can't. It is removed
		// only when it is empty.
		_ = os.Remove(socketDir)
	}
}

// serving is one run of Serve.
type serving struct {
	calls *calls

	mu   sync.Mutex
	grpc *grpc.Server
	once sync.Once
}

func (s *serving) newServer(opts []grpc.ServerOption) *grpc.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grpc = grpc.NewServer(append(opts, s.calls.serverOptions()...)...)
	return s.grpc
}

// end ends the run: calls in flight are cancelled and may finish a save step,
// their answers leave, the server stops and with it goplugin.Serve. Every
// caller returns when all of that is done.
func (s *serving) end(reason string) {
	s.once.Do(func() {
		logf(slog.LevelDebug, "extension ends", "reason", reason)
		s.calls.stop(saveGrace)
		s.calls.stopStanding()
		s.mu.Lock()
		server := s.grpc
		s.mu.Unlock()
		if server == nil {
			// Told to end before the handshake: there is nothing to save.
			os.Exit(0)
		}
		flushed := make(chan struct{})
		go func() { defer close(flushed); server.GracefulStop() }()
		select {
		case <-flushed:
		case <-time.After(flushGrace):
			server.Stop()
		}
	})
}

// closeWithin closes an extension and gives up on it after a while: the
// process must end.
func closeWithin(closer interface{ Close() error }, limit time.Duration) {
	done := make(chan error, 1)
	go func() { done <- closer.Close() }()
	select {
	case err := <-done:
		if err != nil {
			logf(slog.LevelWarn, "closing the extension failed", "error", err.Error())
		}
	case <-time.After(limit):
		logf(slog.LevelWarn, "closing the extension took too long", "limit", limit.String())
	}
}

// explain tells a person who started the binary by hand what it is.
func explain(w io.Writer, ext sdk.Extension) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	result, err := ext.Describe(ctx, sdk.DescribeOptions{})
	if err != nil {
		result = sdk.DescribeResult{Name: "?", Summary: err.Error()}
	}
	fmt.Fprintf(w, `%s %s is an extension of sandboxer: %s

It is started by sandboxer and its Terraform provider, not by hand. Put it
beside their executable, into a directory named in SANDBOXER_EXTENSION_DIR, or
into the per-user folder sandboxer/extensions of XDG_DATA_HOME, and name it in
a backend:

    sandboxer extension describe %s
`, result.Name, result.Version, result.Summary, result.Name)
}
