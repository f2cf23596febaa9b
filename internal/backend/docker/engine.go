// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

// The engine: what is asked of it, how it is reached, and what its errors
// mean.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// engine is what the backend asks of the engine's API. It is a part of the
// client's own interface, so that a new version of the client shows here what
// has changed.
type engine interface {
	Info(ctx context.Context, options client.InfoOptions) (client.SystemInfoResult, error)

	ContainerCreate(ctx context.Context, options client.ContainerCreateOptions) (client.ContainerCreateResult, error)
	ContainerInspect(ctx context.Context, id string, options client.ContainerInspectOptions) (client.ContainerInspectResult, error)
	ContainerList(ctx context.Context, options client.ContainerListOptions) (client.ContainerListResult, error)
	ContainerRemove(ctx context.Context, id string, options client.ContainerRemoveOptions) (client.ContainerRemoveResult, error)
	ContainerStart(ctx context.Context, id string, options client.ContainerStartOptions) (client.ContainerStartResult, error)
	ContainerPause(ctx context.Context, id string, options client.ContainerPauseOptions) (client.ContainerPauseResult, error)
	ContainerUnpause(ctx context.Context, id string, options client.ContainerUnpauseOptions) (client.ContainerUnpauseResult, error)
	ContainerAttach(ctx context.Context, id string, options client.ContainerAttachOptions) (client.ContainerAttachResult, error)
	ContainerLogs(ctx context.Context, id string, options client.ContainerLogsOptions) (client.ContainerLogsResult, error)
	ContainerExport(ctx context.Context, id string, options client.ContainerExportOptions) (client.ContainerExportResult, error)
	ContainerCommit(ctx context.Context, id string, options client.ContainerCommitOptions) (client.ContainerCommitResult, error)
	CopyToContainer(ctx context.Context, id string, options client.CopyToContainerOptions) (client.CopyToContainerResult, error)
	CopyFromContainer(ctx context.Context, id string, options client.CopyFromContainerOptions) (client.CopyFromContainerResult, error)

	ExecCreate(ctx context.Context, id string, options client.ExecCreateOptions) (client.ExecCreateResult, error)
	ExecAttach(ctx context.Context, execID string, options client.ExecAttachOptions) (client.ExecAttachResult, error)
	ExecInspect(ctx context.Context, execID string, options client.ExecInspectOptions) (client.ExecInspectResult, error)

	ImageList(ctx context.Context, options client.ImageListOptions) (client.ImageListResult, error)
	ImageRemove(ctx context.Context, image string, options client.ImageRemoveOptions) (client.ImageRemoveResult, error)
	ImageBuild(ctx context.Context, buildContext io.Reader, options client.ImageBuildOptions) (client.ImageBuildResult, error)
	ImageInspect(ctx context.Context, image string, options ...client.ImageInspectOption) (client.ImageInspectResult, error)
	ImagePull(ctx context.Context, ref string, options client.ImagePullOptions) (client.ImagePullResponse, error)
	ImageLoad(ctx context.Context, input io.Reader, options ...client.ImageLoadOption) (client.ImageLoadResult, error)
	ImageImport(ctx context.Context, source client.ImageImportSource, ref string, options client.ImageImportOptions) (client.ImageImportResult, error)

	NetworkCreate(ctx context.Context, name string, options client.NetworkCreateOptions) (client.NetworkCreateResult, error)
	NetworkConnect(ctx context.Context, network string, options client.NetworkConnectOptions) (client.NetworkConnectResult, error)
	NetworkList(ctx context.Context, options client.NetworkListOptions) (client.NetworkListResult, error)
	NetworkRemove(ctx context.Context, network string, options client.NetworkRemoveOptions) (client.NetworkRemoveResult, error)

	VolumeCreate(ctx context.Context, options client.VolumeCreateOptions) (client.VolumeCreateResult, error)
	VolumeList(ctx context.Context, options client.VolumeListOptions) (client.VolumeListResult, error)
	VolumeRemove(ctx context.Context, id string, options client.VolumeRemoveOptions) (client.VolumeRemoveResult, error)

	Close() error
}

var _ engine = (*client.Client)(nil)

// facts is what an engine said of itself.
type facts struct {
	id          string // which engine it is; it outlives restarts
	name        string
	version     string
	arch        string // as in GOARCH
	driver      string
	backing     string // the filesystem below the driver
	memoryLimit bool
	cpuLimit    bool
	pidsLimit   bool
	runtimes    map[string]bool
	runtime     string // of whoever names none
	rootless    bool
	podman      bool
	ahead       time.Duration // of the engine's clock before ours
	asked       time.Time     // by our clock
}

const (
	// infoAge is how long what an engine said of its clock is believed.
	infoAge      = 30 * time.Second
	dialDeadline = 10 * time.Second
)

// connect returns the engine. The first call reads the configuration of
// Docker's command line; no call makes a connection.
func (e *Extension) connect() (engine, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.engine != nil {
		return e.engine, nil
	}
	h, err := e.resolveHost()
	if err != nil {
		return nil, err
	}
	options, err := e.clientOptions(h)
	if err != nil {
		return nil, err
	}
	made, err := client.New(options...)
	if err != nil {
		return nil, &sdk.Error{Kind: sdk.ErrInvalid, Path: "host", Message: fmt.Sprintf("no client for the engine at %s", h), Err: err}
	}
	e.engine, e.host = exact{made}, h
	if e.remote != nil {
		e.engine = patient{e.engine}
	}
	return e.engine, nil
}

// clientOptions says how the engine is reached. The environment has no word
// in it beyond what resolveHost took from there.
func (e *Extension) clientOptions(h host) ([]client.Opt, error) {
	var options []client.Opt
	switch h.url.Scheme {
	case sshtransport.Scheme:
		remote, err := e.newRemote(h.url.String())
		if err != nil {
			return nil, err
		}
		e.remote = remote
		options = append(options, client.WithHost("tcp://engine.invalid:2375"), client.WithDialContext(func(ctx context.Context, _, _ string) (net.Conn, error) {
			return remote.dial(ctx)
		}))
	default:
		if h.ca != "" || h.cert != "" {
			config, err := h.tls()
			if err != nil {
				return nil, err
			}
			options = append(options, client.WithHTTPClient(&http.Client{Transport: &http.Transport{TLSClientConfig: config}, CheckRedirect: client.CheckRedirect}))
		}
		options = append(options, client.WithHost(h.url.String()))
		if h.url.Scheme == "tcp" {
			dialer := &net.Dialer{Timeout: dialDeadline, KeepAlive: 30 * time.Second}
			options = append(options, client.WithDialContext(dialer.DialContext))
		}
	}
	if e.opts.Observe != nil {
		options = append(options, client.WithHTTPRequestHook(e.opts.Observe))
	}
	return append(options, client.WithUserAgent("sandboxer")), nil
}

// tls reads the certificates.
func (h host) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: h.skipVerify}
	if h.ca != "" {
		pem, err := os.ReadFile(h.ca)
		pool := x509.NewCertPool()
		if err != nil || !pool.AppendCertsFromPEM(pem) {
			return nil, &sdk.Error{Kind: sdk.ErrInvalid, Path: "cert_path", Message: h.ca + " holds no certificate", Err: err}
		}
		config.RootCAs = pool
	}
	if h.cert != "" {
		pair, err := tls.LoadX509KeyPair(h.cert, h.key)
		if err != nil {
			return nil, &sdk.Error{Kind: sdk.ErrInvalid, Path: "cert_path", Message: "the client's certificate can't be used", Err: err}
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// ask returns the engine together with what it said of itself, at most
// infoAge ago.
func (e *Extension) ask(ctx context.Context) (engine, facts, error) {
	eng, err := e.connect()
	if err != nil {
		return nil, facts{}, err
	}
	e.mu.Lock()
	known := e.facts
	e.mu.Unlock()
	if known != nil && e.opts.Clock.Now().Sub(known.asked) < infoAge {
		return eng, *known, nil
	}
	learned, err := e.learn(ctx, eng)
	if err != nil {
		return nil, facts{}, err
	}
	e.mu.Lock()
	e.facts = &learned
	e.mu.Unlock()
	return eng, learned, nil
}

func (e *Extension) learn(ctx context.Context, eng engine) (facts, error) {
	before := e.opts.Clock.Now()
	answer, err := eng.Info(ctx, client.InfoOptions{})
	after := e.opts.Clock.Now()
	if err != nil {
		return facts{}, e.translate(err, "ask the engine about itself")
	}
	info := answer.Info
	if info.OSType != "" && info.OSType != "linux" {
		return facts{}, &sdk.Error{Kind: sdk.ErrUnsupported, Path: "host", Message: fmt.Sprintf("the engine at %s runs %s containers, and sandboxes are Linux containers", e.host, clip(info.OSType))}
	}
	f := facts{
		id: info.ID, name: info.Name, version: info.ServerVersion, arch: goarch(info.Architecture), driver: info.Driver,
		memoryLimit: info.MemoryLimit, cpuLimit: info.CPUCfsQuota, pidsLimit: info.PidsLimit,
		runtimes: map[string]bool{}, runtime: info.DefaultRuntime, asked: after,
	}
	if info.ContainerdCommit.ID == "" && info.ProductLicense != "" {
		f.podman = true
		f.id = "podman-" + info.Name // Podman makes a new id for each answer
	}
	for name := range info.Runtimes {
		f.runtimes[name] = true
	}
	for _, pair := range info.DriverStatus {
		if pair[0] == "Backing Filesystem" {
			f.backing = pair[1]
		}
	}
	for _, option := range info.SecurityOptions {
		f.rootless = f.rootless || strings.Contains(option, "rootless")
	}
	if system, err := time.Parse(time.RFC3339Nano, info.SystemTime); err == nil {
		f.ahead = ahead(system, before, after)
	}
	return f, nil
}

// ahead returns how far a clock is ahead of ours that showed a time at some
// moment between two of ours. Where that may be the very same time, the two are
// taken to agree: they mostly do, and the answer of a busy engine takes longer
// than clocks differ.
func ahead(shown, before, after time.Time) time.Duration {
	if !shown.Before(before) && !shown.After(after) {
		return 0
	}
	return shown.Sub(before.Add(after.Sub(before) / 2))
}

// now is the time by the engine's clock, which is the one that deadlines are
// judged by.
func (e *Extension) now(f facts) time.Time { return e.opts.Clock.Now().Add(f.ahead).UTC() }

func goarch(machine string) string {
	switch machine {
	case "x86_64", "amd64":
		return "amd64"
	case "aarch64", "arm64":
		return "arm64"
	}
	return machine
}

// translate gives an engine's error its kind.
func (e *Extension) translate(err error, what string) error {
	var ours *sdk.Error
	var request *url.Error
	if errors.As(err, &request) && errors.As(request.Err, &ours) {
		// Of the SSH connection. The request's URL is one that nobody wrote.
		return &sdk.Error{Kind: ours.Kind, Path: ours.Path, Message: fmt.Sprintf("%s on the engine at %s", what, e.host), Err: ours}
	}
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &ours) {
		return err
	}
	failed := &sdk.Error{Message: fmt.Sprintf("%s on the engine at %s", what, e.host), Err: err}
	var network net.Error
	switch {
	case errdefs.IsNotFound(err):
		failed.Kind = sdk.ErrNotFound
	case errdefs.IsConflict(err), errdefs.IsAlreadyExists(err):
		failed.Kind = sdk.ErrConflict
	case errdefs.IsUnauthorized(err), errdefs.IsPermissionDenied(err), errors.Is(err, os.ErrPermission):
		failed.Kind = sdk.ErrUnauthenticated
		failed.Advice = "this user needs access to the engine, or other credentials"
	case errdefs.IsInvalidArgument(err):
		failed.Kind = sdk.ErrInvalid
	case errdefs.IsNotImplemented(err):
		failed.Kind = sdk.ErrUnsupported
	case errdefs.IsResourceExhausted(err):
		failed.Kind = sdk.ErrQuota
	case client.IsErrConnectionFailed(err), errdefs.IsUnavailable(err), errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		failed.Kind = sdk.ErrUnreachable
		failed.Advice = "see whether the engine runs and whether this is its address"
	default:
		return fmt.Errorf("%s on the engine at %s: %w", what, e.host, err)
	}
	return failed
}

// lost reports whether a request may have been carried out although it
// failed.
func lost(err error) bool {
	var network net.Error
	return errors.Is(err, sdk.ErrUnreachable) || client.IsErrConnectionFailed(err) || errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
