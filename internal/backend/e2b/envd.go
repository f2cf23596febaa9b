// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

// envd, the program in each sandbox that runs commands and moves files: how it
// is reached, and its calls.

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// envdPort is the port of envd in every sandbox.
const envdPort = "49983"

// access is how envd of one sandbox is reached.
type access struct {
	ref   string
	base  string
	token sdk.Secret
}

// accessOf returns how envd of a sandbox is reached. A listing does not have
// the token, which stays the same as long as the sandbox does.
func (e *Extension) accessOf(ctx context.Context, v vendorSandbox) (access, error) {
	e.mu.Lock()
	known, ok := e.access[v.SandboxID]
	e.mu.Unlock()
	if ok {
		return known, nil
	}
	if v.AccessToken == "" {
		var err error
		if v, err = e.client.getSandbox(ctx, v.SandboxID); err != nil {
			return access{}, err
		}
	}
	domain := e.settings.Domain
	if v.Domain != "" {
		if err := validDomain(v.Domain); err != nil {
			return access{}, sdk.Errorf(sdk.ErrUnreachable, "E2B names %.80q as the domain of sandbox %s, which is none", v.Domain, v.SandboxID)
		}
		domain = v.Domain
	}
	a := access{ref: v.SandboxID, token: sdk.Secret(v.AccessToken)}
	switch {
	case e.settings.SandboxURL != "":
		a.base = e.settings.SandboxURL
	case slices.Contains(sharedDomains, domain):
		a.base = "https://sandbox." + domain
	default:
		a.base = "https://" + envdPort + "-" + v.SandboxID + "." + domain
	}
	e.mu.Lock()
	e.access[v.SandboxID] = a
	e.mu.Unlock()
	return a, nil
}

// request returns a request to envd.
func (a access) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "sandboxer")
	req.Header.Set("E2b-Sandbox-Id", a.ref)
	req.Header.Set("E2b-Sandbox-Port", envdPort)
	if a.token != "" {
		req.Header.Set("X-Access-Token", string(a.token))
	}
	return req, nil
}

// as names the user of a request; empty is the sandbox's own.
func as(req *http.Request, user string) {
	if user != "" {
		req.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":")))
	}
}

// errEdge is what the edge answers for a sandbox that it does not know: one
// that is gone, paused, or has only just begun.
var errEdge = errors.New("the sandbox can't be reached at the moment")

// maxEnvdError bounds what is read of an error.
const maxEnvdError = 64 << 10

// envdFailure reads an answer of envd, or of the edge before it, that is no
// success.
func (e *Extension) envdFailure(resp *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxEnvdError))
	if err != nil {
		return sdk.Errorf(sdk.ErrUnreachable, "the sandbox's answer broke off: %s", err)
	}
	var said struct{ Message string }
	if json.Unmarshal(body, &said) != nil {
		said.Message = "the answer is not one of a sandbox"
	}
	message := clip(e.client.mask(said.Message))
	switch resp.StatusCode {
	case http.StatusBadGateway, http.StatusConflict:
		return &sdk.Error{Kind: sdk.ErrUnreachable, Err: errEdge, Message: fmt.Sprintf("%d: %s", resp.StatusCode, message)}
	case http.StatusUnauthorized:
		return sdk.Errorf(sdk.ErrUnauthenticated, "the sandbox refuses: %s", message)
	case http.StatusNotFound:
		return sdk.Errorf(sdk.ErrNotFound, "the sandbox does not have it: %s", message)
	case http.StatusBadRequest:
		return sdk.Errorf(sdk.ErrInvalid, "the sandbox refuses: %s", message)
	case http.StatusTooManyRequests, http.StatusInsufficientStorage:
		return sdk.Errorf(sdk.ErrQuota, "%d: %s", resp.StatusCode, message)
	}
	return sdk.Errorf(sdk.ErrUnreachable, "the sandbox answered %d: %s", resp.StatusCode, message)
}

// send makes a request to envd. What comes is no success is an error.
func (e *Extension) send(req *http.Request) (*http.Response, error) {
	resp, err := e.client.http.Do(req)
	if err != nil {
		if req.Context().Err() != nil {
			return nil, context.Cause(req.Context())
		}
		return nil, &sdk.Error{Kind: sdk.ErrUnreachable, Message: "the sandbox gave no answer", Err: err}
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, e.envdFailure(resp)
}

// The bounds of waiting for envd after a create or a resume: the edge may not
// know the sandbox for a moment.
const (
	envdDeadline = 60 * time.Second
	envdPause    = 50 * time.Millisecond
	envdMost     = 2 * time.Second
)

// awaitEnvd waits until envd answers.
func (e *Extension) awaitEnvd(ctx context.Context, v vendorSandbox) error {
	a, err := e.accessOf(ctx, v)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, envdDeadline)
	defer cancel()
	for pause := envdPause; ; pause = min(2*pause, envdMost) {
		req, err := a.request(ctx, http.MethodGet, "/health", http.NoBody)
		if err != nil {
			return err
		}
		resp, err := e.send(req)
		if err == nil {
			return resp.Body.Close()
		}
		if sleepErr := e.opts.Clock.Sleep(ctx, pause); sleepErr != nil {
			return errors.Join(fmt.Errorf("sandbox %s did not answer: %w", v.SandboxID, err), sleepErr)
		}
	}
}

// upload writes a file.
func (e *Extension) upload(ctx context.Context, a access, path, user string, content io.Reader) error {
	req, err := a.request(ctx, http.MethodPost, "/files?path="+url.QueryEscape(path), content)
	if err != nil {
		return err
	}
	as(req, user)
	req.Header.Set("Content-Type", "application/octet-stream")
	resp, err := e.send(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var written []struct{ Path string }
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxEnvdError)).Decode(&written); err != nil || len(written) != 1 {
		// A success that wrote nothing is one of envd's, too.
		return sdk.Errorf(sdk.ErrUnreachable, "the sandbox says that it wrote %d files, not one (%v)", len(written), err)
	}
	return nil
}

// unary makes one call of envd's that is no stream.
func (e *Extension) unary(ctx context.Context, a access, method string, body any) error {
	req, err := a.request(ctx, http.MethodPost, "/process.Process/"+method, bytes.NewReader(encode(body)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Connect-Protocol-Version", "1")
	resp, err := e.send(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxEnvdError))
	return errors.Join(err, resp.Body.Close())
}

// process is a command as envd takes it.
type process struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  string            `json:"cwd,omitempty"`
}

type startRequest struct {
	Process process `json:"process"`
	Tag     string  `json:"tag,omitempty"`
	Stdin   bool    `json:"stdin"`
}

// selector names a process.
type selector struct {
	PID int `json:"pid"`
}

// start starts a process and returns the stream of its events.
func (e *Extension) start(ctx context.Context, a access, user string, body startRequest, most time.Duration) (*events, error) {
	payload := encode(body)
	req, err := a.request(ctx, http.MethodPost, "/process.Process/Start", bytes.NewReader(envelope(payload)))
	if err != nil {
		return nil, err
	}
	as(req, user)
	req.Header.Set("Content-Type", "application/connect+json")
	req.Header.Set("Connect-Protocol-Version", "1")
	req.Header.Set("Keepalive-Ping-Interval", "50")
	if most > 0 {
		req.Header.Set("Connect-Timeout-Ms", strconv.FormatInt(most.Milliseconds(), 10))
	}
	resp, err := e.send(req)
	if err != nil {
		return nil, err
	}
	if kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";"); kind != "application/connect+json" {
		return nil, errors.Join(sdk.Errorf(sdk.ErrUnreachable, "the sandbox answered a command with %.80q", kind), resp.Body.Close())
	}
	return &events{body: resp.Body}, nil
}
