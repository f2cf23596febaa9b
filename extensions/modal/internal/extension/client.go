// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension

// The vendor's service: the client that speaks to it, what is asked for with its
// wire types because that client hides it, and what its errors mean.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// callDeadline bounds one call of the control plane, with its repetitions.
	callDeadline = time.Minute
	// throttled bounds how long the client waits because the service asks it
	// to; without it that would be without end.
	throttled = 20 * time.Second
)

// client is the connection to the service, made when it is first needed.
type client struct {
	settings settings
	backend  string
	getenv   func(string) string
	// preparing is the app that images are built in ahead of the first create.
	preparing string

	mu    sync.Mutex
	conn  *modal.Client
	raw   *grpc.ClientConn // seen by the interceptor
	creds credentials
	known map[string]*modal.App // by name
}

func newClient(s settings, backend string, getenv func(string) string) *client {
	return &client{settings: s, backend: backend, getenv: getenv, preparing: "sandboxer-images", known: map[string]*modal.App{}}
}

// construction guards the environment of the process, which the vendor's client
// takes its server, and everything that is not given, from.
var construction sync.Mutex

// vendor returns the vendor's client.
func (c *client) vendor() (*modal.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		return c.conn, nil
	}
	creds, err := c.settings.credentials(c.getenv)
	if err != nil {
		return nil, err
	}
	made, err := construct(creds, c.intercept)
	if err != nil {
		return nil, &sdk.Error{Kind: sdk.ErrUnreachable, Message: "Modal's client could not be made", Err: c.masked(creds, err)}
	}
	c.conn, c.creds = made, creds
	return made, nil
}

// construct makes the vendor's client with nothing of the user's environment
// but what was chosen here.
func construct(creds credentials, intercept grpc.UnaryClientInterceptor) (*modal.Client, error) {
	construction.Lock()
	defer construction.Unlock()
	chosen := map[string]string{
		"MODAL_SERVER_URL": creds.server, "MODAL_SANDBOX_V2": "1",
		"MODAL_CONFIG_PATH": filepath.Join(os.TempDir(), "sandboxer-no-such-directory", "modal.toml"),
	}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, "MODAL_") {
			continue
		}
		if err := os.Unsetenv(name); err != nil {
			return nil, err
		}
		defer os.Setenv(name, value)
	}
	for name, value := range chosen {
		if err := os.Setenv(name, value); err != nil {
			return nil, err
		}
	}
	defer func() {
		for name := range chosen {
			_ = os.Unsetenv(name) // before what was there is set again
		}
	}()
	wait := throttled
	return modal.NewClientWithOptions(&modal.ClientParams{
		TokenID: creds.id, TokenSecret: string(creds.secret), Environment: creds.environment, MaxThrottleWait: &wait,
		// It would tell commands, and that a loopback address has no TLS.
		Logger:                slog.New(slog.DiscardHandler),
		GRPCUnaryInterceptors: []grpc.UnaryClientInterceptor{intercept},
	})
}

func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// lostError stands for a call that may have been carried out although it
// failed.
type lostError struct{ err error }

func (l lostError) Error() string { return l.err.Error() }
func (l lostError) Unwrap() error { return l.err }

// GRPCStatus has a code that the vendor's client does not repeat a call for.
func (l lostError) GRPCStatus() *status.Status { return status.New(codes.Aborted, l.err.Error()) }

func isLost(err error) bool {
	var lost lostError
	return errors.As(err, &lost)
}

// once are the calls that must not be made again before a look at what came of
// them.
var once = []string{"/SandboxCreateV2", "/SandboxTagsSetV2", "/SandboxTagsSet"}

// intercept is the innermost of the client's interceptors: it sees each try of a
// call, and the connection.
func (c *client) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if strings.HasPrefix(method, "/modal.client.ModalClient/") {
		c.mu.Lock()
		c.raw = cc
		c.mu.Unlock()
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	if err == nil || !slices.ContainsFunc(once, func(name string) bool { return strings.HasSuffix(method, name) }) {
		return err
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.Internal, codes.Unknown, codes.DeadlineExceeded, codes.Canceled:
		return lostError{err}
	}
	return err
}

// wire returns the service with its wire types. Calls made with it pass through
// everything that the vendor's client does for its own. Only that client's calls
// show the connection, so one is made first where none was.
func (c *client) wire(ctx context.Context) (pb.ModalClientClient, error) {
	c.mu.Lock()
	raw := c.raw
	c.mu.Unlock()
	if raw == nil {
		if _, err := c.app(ctx, c.preparing, false); err != nil && !errors.Is(err, sdk.ErrNotFound) {
			return nil, err
		}
		c.mu.Lock()
		raw = c.raw
		c.mu.Unlock()
	}
	return pb.NewModalClientClient(raw), nil
}

// environment is the name of the environment; empty is the default one.
func (c *client) environment() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.creds.environment
}

// appName is the name of a fleet's app: any text is a fleet's name, and not any
// text is an app's.
func appName(fleet string) string {
	shown := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '-'
	}, fleet)
	return "sandboxer-" + shown[:min(len(shown), 30)] + "-" + fleetKey(fleet)[:12]
}

// fleetKey stands for a fleet in tags and names.
func fleetKey(fleet string) string {
	sum := sha256.Sum256([]byte(fleet))
	return hex.EncodeToString(sum[:16])
}

// app returns an app by its name. One that is not there is not remembered.
func (c *client) app(ctx context.Context, name string, create bool) (*modal.App, error) {
	vendor, err := c.vendor()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	known := c.known[name]
	c.mu.Unlock()
	if known != nil {
		return known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	found, err := vendor.Apps.FromName(ctx, name, &modal.AppFromNameParams{Environment: c.environment(), CreateIfMissing: create})
	if err != nil {
		return nil, c.translate(ctx, err)
	}
	c.mu.Lock()
	c.known[name] = found
	c.mu.Unlock()
	return found, nil
}

// dropApp forgets an app that the service does not know any more.
func (c *client) dropApp(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, name)
}

// workspace names the workspace of the token.
func (c *client) workspace(ctx context.Context) (string, error) {
	wire, err := c.wire(ctx)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	info, err := wire.TokenInfoGet(ctx, &pb.TokenInfoGetRequest{})
	if err != nil {
		return "", c.translate(ctx, err)
	}
	return info.GetWorkspaceName(), nil
}

// vendorSandbox is what the service says of a sandbox.
type vendorSandbox struct {
	ref     string
	tags    map[string]string
	created float64       // as it bounds pages; 0 when not told
	timeout time.Duration // 0 when not told
	tunnels tunnels       // nil when not told
}

// tunnels are the endpoints of a sandbox, by its own port.
type tunnels map[int]tunnel

type tunnel struct{ tls, tcp string }

func tunnelsOf(list []*pb.TunnelData) tunnels {
	found := tunnels{}
	for _, data := range list {
		t := tunnel{}
		if data.GetHost() != "" && data.GetPort() != 0 {
			t.tls = fmt.Sprintf("%s:%d", data.GetHost(), data.GetPort())
		}
		if data.GetUnencryptedHost() != "" && data.GetUnencryptedPort() != 0 {
			t.tcp = fmt.Sprintf("%s:%d", data.GetUnencryptedHost(), data.GetUnencryptedPort())
		}
		found[int(data.GetContainerPort())] = t
	}
	return found
}

// isV1 tells the generation of a sandbox, as the vendor's clients do.
func isV1(ref string) bool {
	suffix, ok := strings.CutPrefix(ref, "sb-")
	return ok && len(suffix) == 22 && strings.Trim(suffix, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") == ""
}

// page asks for one page of a listing. before is exclusive; 0 is now.
func (c *client) page(ctx context.Context, app string, tags map[string]string, before float64, v1 bool) ([]vendorSandbox, error) {
	wire, err := c.wire(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	req := pb.SandboxListRequest_builder{AppId: app, BeforeTimestamp: before, EnvironmentName: c.environment(), Tags: tagList(tags)}.Build()
	call := wire.SandboxListV2
	if v1 {
		call = wire.SandboxList
	}
	answer, err := call(ctx, req)
	if err != nil {
		return nil, c.translate(ctx, err)
	}
	var found []vendorSandbox
	for _, info := range answer.GetSandboxes() {
		v := vendorSandbox{ref: info.GetId(), tags: tagsOf(info.GetTags()), created: info.GetCreatedAt(), timeout: time.Duration(info.GetTimeoutSecs()) * time.Second}
		if list := info.GetTunnels(); len(list) > 0 {
			v.tunnels = tunnelsOf(list)
		}
		found = append(found, v)
	}
	return found, nil
}

func tagsOf(list []*pb.SandboxTag) map[string]string {
	tags := map[string]string{}
	for _, tag := range list {
		tags[tag.GetTagName()] = tag.GetTagValue()
	}
	return tags
}

func tagList(tags map[string]string) []*pb.SandboxTag {
	var list []*pb.SandboxTag
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		list = append(list, pb.SandboxTag_builder{TagName: name, TagValue: tags[name]}.Build())
	}
	return list
}

// getTags returns the tags of a sandbox, which may have ended.
func (c *client) getTags(ctx context.Context, ref string) (map[string]string, error) {
	wire, err := c.wire(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	call := wire.SandboxTagsGetV2
	if isV1(ref) {
		call = wire.SandboxTagsGet
	}
	answer, err := call(ctx, pb.SandboxTagsGetRequest_builder{SandboxId: ref}.Build())
	if err != nil {
		return nil, c.translate(ctx, err)
	}
	return tagsOf(answer.GetTags()), nil
}

// setTags replaces all tags of a sandbox. It is not repeated: between two of
// the same, somebody else's would be lost.
func (c *client) setTags(ctx context.Context, ref string, tags map[string]string) error {
	wire, err := c.wire(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	call := wire.SandboxTagsSetV2
	req := pb.SandboxTagsSetRequest_builder{SandboxId: ref, Tags: tagList(tags)}
	if isV1(ref) {
		call, req.EnvironmentName = wire.SandboxTagsSet, c.environment()
	}
	if _, err := call(ctx, req.Build()); err != nil {
		return c.translate(ctx, err)
	}
	return nil
}

// ending is how a sandbox has ended.
type ending struct {
	code pb.GenericResult_GenericStatus
	exit int32
	why  string
}

// String says it in the words of the lease.
func (e ending) String() string {
	text := ""
	switch e.code {
	case pb.GenericResult_GENERIC_STATUS_TIMEOUT:
		return "its lifetime was over"
	case pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT:
		return "it was idle"
	case pb.GenericResult_GENERIC_STATUS_TERMINATED:
		return "it was terminated"
	case pb.GenericResult_GENERIC_STATUS_INIT_FAILURE:
		text = "it did not start"
	case pb.GenericResult_GENERIC_STATUS_INTERNAL_FAILURE:
		text = "the vendor failed"
	case pb.GenericResult_GENERIC_STATUS_SUCCESS, pb.GenericResult_GENERIC_STATUS_FAILURE:
		text = fmt.Sprintf("its entrypoint ended with %d", e.exit)
	default:
		text = fmt.Sprintf("the vendor's status %d", e.code)
	}
	if e.why != "" {
		text += fmt.Sprintf(": %.200q", e.why)
	}
	return text
}

// ended returns how a sandbox has ended, waiting for that up to so long; nil
// while it runs.
func (c *client) ended(ctx context.Context, ref string, wait time.Duration) (*ending, error) {
	wire, err := c.wire(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callDeadline+wait)
	defer cancel()
	call := wire.SandboxWaitV2
	if isV1(ref) {
		call = wire.SandboxWait
	}
	answer, err := call(ctx, pb.SandboxWaitRequest_builder{SandboxId: ref, Timeout: float32(wait.Seconds())}.Build())
	if err != nil {
		return nil, c.translate(ctx, err)
	}
	result := answer.GetResult()
	if result == nil || result.GetStatus() == pb.GenericResult_GENERIC_STATUS_UNSPECIFIED {
		return nil, nil //nolint:nilnil // it runs: there is no end to tell of
	}
	return &ending{result.GetStatus(), result.GetExitcode(), result.GetException()}, nil
}

// terminate asks for the end of a sandbox.
func (c *client) terminate(ctx context.Context, ref string) error {
	wire, err := c.wire(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	call := wire.SandboxTerminateV2
	if isV1(ref) {
		call = wire.SandboxTerminate
	}
	if _, err := call(ctx, pb.SandboxTerminateRequest_builder{SandboxId: ref}.Build()); err != nil {
		return c.translate(ctx, err)
	}
	return nil
}

// getTunnels returns the endpoints of a sandbox.
func (c *client) getTunnels(ctx context.Context, ref string) (tunnels, error) {
	const wait = 30 * time.Second
	wire, err := c.wire(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callDeadline+wait)
	defer cancel()
	call := wire.SandboxGetTunnelsV2
	if isV1(ref) {
		call = wire.SandboxGetTunnels
	}
	answer, err := call(ctx, pb.SandboxGetTunnelsRequest_builder{SandboxId: ref, Timeout: float32(wait.Seconds())}.Build())
	if err != nil {
		return nil, c.translate(ctx, err)
	}
	if code := answer.GetResult().GetStatus(); code != pb.GenericResult_GENERIC_STATUS_SUCCESS && code != pb.GenericResult_GENERIC_STATUS_UNSPECIFIED {
		return nil, sdk.Errorf(sdk.ErrUnreachable, "Modal has no tunnels for %s: status %d", ref, code)
	}
	return tunnelsOf(answer.GetTunnels()), nil
}

// named returns the sandbox of an app that runs and has a name.
func (c *client) named(ctx context.Context, app, name string) (ref string, err error) {
	vendor, err := c.vendor()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	found, err := vendor.Sandboxes.FromName(ctx, app, name, &modal.SandboxFromNameParams{Environment: c.environment()})
	if err != nil {
		return "", c.translate(ctx, err)
	}
	return found.SandboxID, nil
}

// imageThere reports whether an image can still be used.
func (c *client) imageThere(ctx context.Context, id string) (*modal.Image, error) {
	vendor, err := c.vendor()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	found, err := vendor.Images.FromID(ctx, id, nil)
	if err != nil {
		return nil, c.translate(ctx, err)
	}
	return found, nil
}

// deleteImage removes an image.
func (c *client) deleteImage(ctx context.Context, id string) error {
	vendor, err := c.vendor()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	if err := vendor.Images.Delete(ctx, id, nil); err != nil {
		return c.translate(ctx, err)
	}
	return nil
}

// translate gives an error of the vendor's client its kind, without any secret
// that it may hold.
func (c *client) translate(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	var ours *sdk.Error
	if errors.As(err, &ours) {
		return err
	}
	c.mu.Lock()
	said := c.masked(c.creds, err)
	c.mu.Unlock()
	if cause := ctx.Err(); errors.Is(cause, context.Canceled) {
		return errors.Join(cause, said)
	}
	told := &sdk.Error{Kind: kindOf(err), Message: "backend " + c.backend, Err: said}
	for _, detail := range status.Convert(err).Details() {
		if policy, ok := detail.(*pb.RPCRetryPolicy); ok {
			told.RetryAfter = time.Duration(float64(policy.GetRetryAfterSecs()) * float64(time.Second))
		}
	}
	return told
}

// maskedError shows an error's text without secrets, and keeps what it is.
type maskedError struct {
	text string
	err  error
}

func (m maskedError) Error() string { return m.text }

// As finds whether the call was lost, and nothing that could show the text.
func (m maskedError) As(target any) bool {
	lost, ok := target.(*lostError)
	return ok && errors.As(m.err, lost)
}

func (c *client) masked(creds credentials, err error) error {
	text := err.Error()
	for _, secret := range []string{string(creds.secret), creds.id} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "[secret]")
		}
	}
	const most = 2000
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return maskedError{text, err}
}

// kindOf is the kind of an error of the vendor's client, by its own types and
// by codes.
func kindOf(err error) error {
	var (
		notFound modal.NotFoundError
		exists   modal.AlreadyExistsError
		conflict modal.ConflictError
		invalid  modal.InvalidError
		remote   modal.RemoteError
		full     modal.ResourceExhaustedError
	)
	switch {
	case errors.As(err, &notFound):
		return sdk.ErrNotFound
	case errors.As(err, &exists), errors.As(err, &conflict):
		return sdk.ErrConflict
	case errors.As(err, &invalid), errors.As(err, &remote):
		return sdk.ErrInvalid
	case errors.As(err, &full):
		return sdk.ErrQuota
	case isLost(err):
		return sdk.ErrUnreachable
	}
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied:
		return sdk.ErrUnauthenticated
	case codes.InvalidArgument, codes.OutOfRange:
		return sdk.ErrInvalid
	case codes.NotFound:
		return sdk.ErrNotFound
	case codes.AlreadyExists, codes.FailedPrecondition, codes.Aborted:
		return sdk.ErrConflict
	case codes.ResourceExhausted:
		return sdk.ErrQuota
	}
	return sdk.ErrUnreachable
}
