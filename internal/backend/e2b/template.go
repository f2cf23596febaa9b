// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

// Templates that the vendor builds from an image or a Dockerfile. Each is named
// by the digest of what it is built from, so the same is built once.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// builtPrefix begins the name of a template that was built here.
const builtPrefix = "sandboxer-"

func (s buildSpec) name() string {
	sum := sha256.Sum256(encode(s))
	return builtPrefix + hex.EncodeToString(sum[:16])
}

// The bounds of waiting for a build.
const (
	buildDeadline = 20 * time.Minute
	buildPause    = 2 * time.Second
)

// The states of a build.
const (
	buildReady  = "ready"
	buildFailed = "error"
)

// ensure has the template of a source built, if it is to be built and is not
// there, and returns the source with its name.
func (e *Extension) ensure(ctx context.Context, s source, progress func(sdk.Progress)) (source, error) {
	if s.build == nil {
		return s, nil
	}
	s.ref = s.build.name()
	ready, err := e.client.templateReady(ctx, s.ref)
	if err != nil || ready {
		return s, err
	}
	if progress != nil {
		progress(sdk.Progress{Phase: "pull", Message: "E2B builds a template from " + s.build.FromImage})
	}
	ctx, cancel := context.WithTimeout(ctx, buildDeadline)
	defer cancel()
	template, build, err := e.client.createTemplate(ctx, s.ref)
	if err == nil {
		err = e.client.startBuild(ctx, template, build, *s.build)
	}
	if err != nil {
		return s, fmt.Errorf("build a template from %s: %w", s.build.FromImage, err)
	}
	for {
		state, reason, err := e.client.buildStatus(ctx, template, build)
		switch {
		case err != nil:
			return s, fmt.Errorf("build a template from %s: %w", s.build.FromImage, err)
		case state == buildReady:
			return s, nil
		case state == buildFailed:
			return s, sdk.Invalid(s.path, "E2B could not build a template from %.120s: %s", s.build.FromImage, clip(reason))
		}
		if err := e.opts.Clock.Sleep(ctx, buildPause); err != nil {
			return s, fmt.Errorf("waiting for E2B to build a template from %s: %w", s.build.FromImage, err)
		}
	}
}

// templateReady tells whether there is a template of a name with a build that
// can be used.
func (c *client) templateReady(ctx context.Context, name string) (bool, error) {
	id, err := c.templateID(ctx, name)
	if absent(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var answer struct{ Builds []struct{ Status string } }
	if _, err = c.do(ctx, call{method: http.MethodGet, path: "/templates/" + url.PathEscape(id), reads: true, into: &answer}); err != nil {
		return false, err
	}
	for _, build := range answer.Builds {
		if build.Status == buildReady {
			return true, nil
		}
	}
	return false, nil
}

func (c *client) createTemplate(ctx context.Context, name string) (template, build string, err error) {
	var answer struct{ TemplateID, BuildID string }
	_, err = c.do(ctx, call{method: http.MethodPost, path: "/v3/templates", body: map[string]string{"name": name}, into: &answer})
	if err == nil && (answer.TemplateID == "" || answer.BuildID == "") {
		err = c.unreadable(fmt.Errorf("the answer names no build"))
	}
	return answer.TemplateID, answer.BuildID, err
}

func (c *client) startBuild(ctx context.Context, template, build string, spec buildSpec) error {
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/v2/templates/" + url.PathEscape(template) + "/builds/" + url.PathEscape(build), body: spec})
	return err
}

func (c *client) buildStatus(ctx context.Context, template, build string) (state, reason string, err error) {
	var answer struct {
		Status string
		Reason struct{ Message string }
	}
	_, err = c.do(ctx, call{method: http.MethodGet, path: "/templates/" + url.PathEscape(template) + "/builds/" + url.PathEscape(build) + "/status", reads: true, into: &answer})
	return answer.Status, c.mask(answer.Reason.Message), err
}

// isReference tells whether an image is one of a registry's, as far as its
// letters go.
func isReference(image string) bool {
	return len(image) <= 512 && strings.Trim(image, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@") == ""
}
