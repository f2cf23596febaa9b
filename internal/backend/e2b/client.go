// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

// One request to the control plane: how long it may take, when it is made
// again, and what its answer means.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// requestDeadline is longer than the service's own 75 s for a request:
	// giving up earlier would leave a create whose end nobody knows.
	requestDeadline = 90 * time.Second
	// readTries bounds how often a request that changes nothing is made.
	readTries = 3
	readPause = 100 * time.Millisecond
	// throttleTries bounds how often a request is made again that was refused
	// by a rate limit, and throttleMost how long is waited for that.
	throttleTries = 4
	throttleMost  = 30 * time.Second
	// maxAnswer bounds what is read of an answer: a page of a hundred
	// sandboxes with their metadata is a megabyte.
	maxAnswer = 64 << 20
)

// client speaks to the control plane.
type client struct {
	settings settings
	clock    clock.Clock
	getenv   func(string) string
	http     *http.Client

	mu     sync.Mutex
	apiKey sdk.Secret
	skew   time.Duration // of the service's clock against ours
}

func newClient(s settings, opts Options) *client {
	return &client{
		settings: s, clock: opts.Clock, getenv: opts.Getenv,
		http: &http.Client{
			Transport: opts.Transport,
			// The key goes where the user said, and nowhere else.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// key returns the API key, which is found once.
func (c *client) key(ctx context.Context) (sdk.Secret, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.apiKey != "" {
		return c.apiKey, nil
	}
	key, err := c.settings.key(ctx, c.getenv)
	c.apiKey = key
	return key, err
}

// now is the service's time, as its answers tell it.
func (c *client) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clock.Now().Add(c.skew)
}

// skewLeast is the least difference that counts: the header has whole seconds,
// and the answer was under way.
const skewLeast = 3 * time.Second

// learn takes the service's time from an answer.
func (c *client) learn(header http.Header, sent time.Time) {
	theirs, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ours := c.clock.Now()
	switch {
	case theirs.Sub(ours) > skewLeast:
		c.skew = theirs.Sub(ours)
	case sent.Sub(theirs) > skewLeast:
		c.skew = theirs.Add(time.Second).Sub(ours)
	default:
		c.skew = 0
	}
}

// statusError is an answer that is no success, or none at all.
type statusError struct {
	status     int  // 0: there was no answer, so the request may have been carried out
	unsent     bool // the connection was never made, so it was not
	errorCode  string
	message    string
	said       bool // the body is one of the service's own, with its code
	retryAfter time.Duration
	cause      error
}

func (e *statusError) Error() string {
	if e.status == 0 {
		return fmt.Sprintf("no answer: %s", e.cause)
	}
	text := strconv.Itoa(e.status)
	if e.errorCode != "" {
		text += " " + e.errorCode
	}
	if e.message != "" {
		text += ": " + e.message
	}
	return text
}

func (e *statusError) Unwrap() error { return e.cause }

// status returns the status of an answer that was no success; 0 for all else.
func status(err error) int {
	var s *statusError
	if errors.As(err, &s) {
		return s.status
	}
	return 0
}

// absent reports whether the service itself said that a thing is not there. An
// empty 404, or one of something in between, says nothing.
func absent(err error) bool {
	var s *statusError
	return errors.As(err, &s) && s.status == http.StatusNotFound && s.said
}

// unknown reports whether a request may have been carried out though there was
// no success.
func unknown(err error) bool {
	var s *statusError
	if !errors.As(err, &s) {
		return err != nil
	}
	switch s.status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
		return false
	case http.StatusNotFound:
		return !s.said
	}
	return !s.unsent
}

// call is one request.
type call struct {
	method string
	path   string // escaped
	query  url.Values
	body   any // nil is none
	header http.Header
	// reads marks what changes nothing, and so may be made again.
	reads bool
	into  any // what the answer is decoded into; nil discards it
}

// do makes a request, and again where that is safe.
func (c *client) do(ctx context.Context, ask call) (http.Header, error) {
	for attempt := 1; ; attempt++ {
		header, err := c.once(ctx, ask)
		var failed *statusError
		if err == nil || !errors.As(err, &failed) {
			return header, err
		}
		wait := time.Duration(0)
		switch {
		case failed.status == http.StatusTooManyRequests && failed.retryAfter > 0 && failed.retryAfter <= throttleMost && attempt < throttleTries:
			// It was refused before it was looked at.
			wait = failed.retryAfter
		case ask.reads && (failed.status == 0 || failed.status >= http.StatusInternalServerError) && attempt < readTries:
			wait = readPause << attempt
		default:
			return header, c.explain(failed)
		}
		if err := c.clock.Sleep(ctx, wait); err != nil {
			return nil, errors.Join(c.explain(failed), err)
		}
	}
}

// once makes a request.
func (c *client) once(ctx context.Context, ask call) (http.Header, error) {
	key, err := c.key(ctx)
	if err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeout(ctx, requestDeadline)
	defer cancel()
	var body io.Reader = http.NoBody
	if ask.body != nil {
		body = bytes.NewReader(encode(ask.body))
	}
	address := c.settings.APIURL + ask.path
	if len(ask.query) > 0 {
		address += "?" + ask.query.Encode()
	}
	req, err := http.NewRequestWithContext(within, ask.method, address, body)
	if err != nil {
		return nil, err
	}
	if !ask.reads {
		// A request that can be rewound and carries an idempotency key is made
		// again by net/http itself when its connection ends, and not every
		// server keeps to the key.
		req.GetBody = nil
	}
	for name, values := range ask.header {
		req.Header[name] = values
	}
	req.Header.Set("X-API-Key", string(key))
	req.Header.Set("User-Agent", "sandboxer")
	if ask.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	sent := c.clock.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s %s: %w", ask.method, ask.path, errors.Join(&statusError{cause: errors.New("the request was given up")}, ctx.Err()))
		}
		return nil, &statusError{unsent: unsent(err), cause: c.masked(err)}
	}
	defer resp.Body.Close()
	c.learn(resp.Header, sent)
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case resp.StatusCode >= 300:
		return resp.Header, c.refusal(resp, answer)
	case err != nil:
		return resp.Header, &statusError{cause: fmt.Errorf("the answer broke off: %w", c.masked(err))}
	case len(answer) > maxAnswer:
		return resp.Header, &statusError{cause: fmt.Errorf("the answer is longer than %d bytes", maxAnswer)}
	case ask.into == nil:
		return resp.Header, nil
	}
	if err := json.Unmarshal(answer, ask.into); err != nil {
		return resp.Header, &statusError{cause: fmt.Errorf("the answer can't be read: %w", err)}
	}
	return resp.Header, nil
}

// unsent reports whether a request failed before a connection was there.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// masked takes the key out of whatever is said about a request.
func (c *client) masked(err error) error {
	if text := err.Error(); c.mask(text) != text {
		return errors.New(c.mask(text))
	}
	return err
}

func (c *client) mask(text string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.apiKey == "" {
		return text
	}
	return strings.ReplaceAll(text, string(c.apiKey), "[key]")
}

// refusal reads the body of an answer that is no success.
func (c *client) refusal(resp *http.Response, body []byte) *statusError {
	failed := &statusError{status: resp.StatusCode}
	var said struct {
		Code      *int   `json:"code"`
		ErrorCode string `json:"error_code"`
		Message   string `json:"message"`
	}
	if json.Unmarshal(body, &said) == nil && said.Code != nil {
		failed.said, failed.errorCode, failed.message = true, clip(said.ErrorCode), clip(c.mask(said.Message))
	} else {
		failed.message = "the answer is not one of E2B's"
	}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		failed.retryAfter = time.Duration(seconds) * time.Second
	}
	return failed
}

// explain gives an answer the kind that it has for sandboxer. What callers
// tell apart by [absent], [unknown] and [status] stays the cause.
func (c *client) explain(failed *statusError) error {
	said := &sdk.Error{Err: failed, Message: "E2B"}
	switch failed.status {
	case http.StatusUnauthorized:
		said.Kind, said.Message, said.Advice = sdk.ErrUnauthenticated, "E2B does not accept the API key", "keys of a team are made on its dashboard and begin with e2b_"
	case http.StatusForbidden:
		said.Kind, said.Message, said.Advice = sdk.ErrUnauthenticated, "E2B refuses this to the team of the API key", "is the template the team's own or a public one?"
	case http.StatusBadRequest:
		said.Kind, said.Message = sdk.ErrInvalid, "E2B refuses the request"
	case http.StatusNotFound:
		said.Kind, said.Message = sdk.ErrNotFound, "E2B does not have it"
		if !failed.said {
			said.Kind, said.Message = sdk.ErrUnreachable, "the answer is not one of E2B's"
		}
	case http.StatusTooManyRequests:
		said.Kind, said.RetryAfter = sdk.ErrQuota, failed.retryAfter
		if failed.retryAfter > 0 {
			said.Message = "E2B limits the rate of requests"
		} else {
			said.Message, said.Advice = "the team has no room for another running sandbox", "destroy or pause one, or raise the plan's limit; sandboxer list shows those of this fleet"
		}
	default:
		said.Kind, said.RetryAfter, said.Message = sdk.ErrUnreachable, failed.retryAfter, "E2B gave no usable answer"
	}
	return said
}

// clip bounds outside text in a message.
func clip(s string) string {
	const most = 200
	s = strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, s), "")
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
