// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b/e2btest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// built returns the bodies of the builds that were asked for.
func (c *cloud) built() (bodies []string) {
	for _, r := range c.Requests() {
		if r.Method == "POST" && strings.Contains(r.Path, "/builds/") {
			bodies = append(bodies, string(r.Body))
		}
	}
	return bodies
}

// An image is built into a template once, whoever needs it, and by the steps
// that the vendor's own client makes of the same Dockerfile.
func TestATemplateIsBuiltOnce(t *testing.T) {
	dir := t.TempDir()
	dockerfile := "# a comment\nFROM python:3.12\nENV A=1 B='2 3'\nENV OLD form\nWORKDIR /app\nUSER root\nRUN pip install x && \\\n  # in between\n  echo hi\nARG Q=1\nARG R\nARG S\nLABEL a=b\n"
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o600); err != nil {
		t.Fatal(err)
	}
	steps := `{"type":"USER","args":["root"],"force":false},{"type":"WORKDIR","args":["/"],"force":false}`
	for name, row := range map[string]struct {
		profile sdk.Profile
		body    string
	}{
		"image": {sdk.Profile{Name: "p", Image: "python:3.12"}, `{"fromImage":"python:3.12","steps":[],"force":false}`},
		"build": {sdk.Profile{Name: "p", Build: &sdk.BuildSource{Context: dir, Args: map[string]string{"R": "given"}}},
			`{"fromImage":"python:3.12","steps":[` + steps + `,{"type":"ENV","args":["A","1","B","2 3"],"force":false},{"type":"ENV","args":["OLD","form"],"force":false},` +
				`{"type":"WORKDIR","args":["/app"],"force":false},{"type":"USER","args":["root"],"force":false},{"type":"RUN","args":["pip install x \u0026\u0026 echo hi"],"force":false},` +
				`{"type":"ENV","args":["Q","1"],"force":false},{"type":"ENV","args":["R","given"],"force":false}],"force":false}`},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCloud(t, e2btest.Options{})
			prepared, err := c.Prepare(t.Context(), sdk.PrepareOptions{Profile: row.profile})
			if err != nil || prepared.ImageDigest == "" {
				t.Fatalf("%+v, %v", prepared, err)
			}
			for i := range 2 {
				opts := c.creation(i)
				opts.Profile = row.profile
				if _, err := c.Create(t.Context(), opts); err != nil {
					t.Fatal(err)
				}
			}
			if bodies := c.built(); len(bodies) != 1 || bodies[0] != row.body {
				t.Errorf("built by %q", bodies)
			}
		})
	}
}

// What can't be built is refused on its attribute, and nothing is made.
func TestWhatCannotBeBuiltIsRefused(t *testing.T) {
	c := newCloud(t, e2btest.Options{})
	for text, row := range map[string]struct {
		kind error
		part string
	}{
		"FROM a\nCOPY . .":             {sdk.ErrUnsupported, "line 2: COPY"},
		"FROM a\nADD x y":              {sdk.ErrUnsupported, "line 2: ADD"},
		"FROM a\nFROM b":               {sdk.ErrUnsupported, "second stage"},
		"FROM scratch":                 {sdk.ErrUnsupported, "scratch"},
		"ARG V=1\nFROM a:$V":           {sdk.ErrUnsupported, "before FROM"},
		"FROM a\nRUN [\"x\"]":          {sdk.ErrUnsupported, "RUN"},
		"FROM a\nRUN --mount=x y":      {sdk.ErrUnsupported, "RUN"},
		"FROM a\nCMD x":                {sdk.ErrUnsupported, "command of the profile"},
		"FROM a\n\n\nSHELL [\"x\"]":    {sdk.ErrUnsupported, "line 4"},
		"FROM a\nENV A='x":             {sdk.ErrInvalid, "quote"},
		"FROM a\nENV A=1 B":            {sdk.ErrInvalid, "NAME=VALUE"},
		"FROM a\nRUN":                  {sdk.ErrInvalid, "no argument"},
		"# nothing":                    {sdk.ErrInvalid, "no FROM"},
		"FROM registry/does-not-exist": {sdk.ErrInvalid, "can't be pulled"},
	} {
		t.Run(text, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			opts := c.creation(1)
			opts.Profile.Build = &sdk.BuildSource{Context: dir}
			_, err := c.Create(t.Context(), opts)
			var said *sdk.Error
			if !errors.Is(err, row.kind) || !errors.As(err, &said) || !strings.HasPrefix(said.Path, "build") || !strings.Contains(err.Error(), row.part) {
				t.Errorf("%v", err)
			}
		})
	}
	for _, p := range []sdk.Profile{
		{Build: &sdk.BuildSource{Context: "/not/there"}}, {Build: &sdk.BuildSource{Context: t.TempDir(), Dockerfile: "../x"}},
		{Build: &sdk.BuildSource{Context: t.TempDir(), Target: "x"}}, {Image: "a b"}, {Image: "e2b:"}, {Template: "a b"}, {Image: "./x.tar"},
	} {
		opts := c.creation(1)
		opts.Profile = p
		if _, err := c.Create(t.Context(), opts); !errors.Is(err, sdk.ErrInvalid) && !errors.Is(err, sdk.ErrUnsupported) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if len(c.Sandboxes()) != 0 {
		t.Errorf("%d were made", len(c.Sandboxes()))
	}
}

// A template is prepared by its name or its id; one that is not there is told on
// its attribute.
func TestPrepareLooksForTheTemplate(t *testing.T) {
	c := newCloud(t, e2btest.Options{})
	byName, err := c.Prepare(t.Context(), sdk.PrepareOptions{Profile: sdk.Profile{Name: "p", Image: "e2b:base"}})
	if err != nil || byName.ImageDigest == "" {
		t.Fatal(err)
	}
	byID, err := c.Prepare(t.Context(), sdk.PrepareOptions{Profile: sdk.Profile{Name: "p", Template: byName.ImageDigest}})
	if err != nil || byID != byName {
		t.Errorf("%+v, %v", byID, err)
	}
	if _, err := c.Prepare(t.Context(), sdk.PrepareOptions{Profile: sdk.Profile{Name: "p", Template: "others/base"}}); err != nil {
		t.Errorf("a template of another team: %v", err)
	}
	var said *sdk.Error
	_, err = c.Prepare(t.Context(), sdk.PrepareOptions{Profile: sdk.Profile{Name: "p", Template: "nothing"}})
	if !errors.Is(err, sdk.ErrInvalid) || !errors.As(err, &said) || said.Path != "template" {
		t.Errorf("%v", err)
	}
}
