// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/cli"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// partial is a backend whose listing lacks something.
type partial struct {
	sdk.Extension
	incomplete string
	unreadable []string
}

func (p partial) List(ctx context.Context, opts sdk.ListOptions) (sdk.ListResult, error) {
	result, err := p.Extension.List(ctx, opts)
	result.Incomplete, result.Unreadable = p.incomplete, p.unreadable
	return result, err
}

// An empty listing that may lack something never makes an empty receipt.
func TestReceiptOfAPartialListing(t *testing.T) {
	const bad = "sbx-00000000000000000000"
	for name, test := range map[string]struct {
		backend partial
		act     []string
		verify  int
		said    string
	}{
		"complete":                 {partial{}, []string{"reap"}, 0, "EMPTY"},
		"incomplete":               {partial{incomplete: "page 2 is missing"}, []string{"reap"}, 3, "page 2 is missing"},
		"incomplete, destroy":      {partial{incomplete: "page 2 is missing"}, []string{"destroy", "--all"}, 3, "page 2 is missing"},
		"unreadable":               {partial{unreadable: []string{bad}}, []string{"reap"}, 3, bad},
		"unreadable, destroy":      {partial{unreadable: []string{bad}}, []string{"destroy", "--all"}, 3, bad},
		"unreadable, another's id": {partial{unreadable: []string{bad}}, []string{"destroy", "sbx-06h2ujkjonua12rau9vr"}, 0, "EMPTY"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file, receipt := filepath.Join(dir, "sandboxer.hcl"), filepath.Join(dir, "receipt.json")
			if err := os.WriteFile(file, []byte("fleet = \"f\"\nbackends = { odd = { extension = \"odd\", config_json = jsonencode({ file = \""+filepath.ToSlash(filepath.Join(dir, "cloud.json"))+"\" }) } }\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			run := func(args ...string) (int, string) {
				var out bytes.Buffer
				code := cli.Run(t.Context(), append([]string{"--config", file, "--state-dir", filepath.Join(dir, "state")}, args...), cli.Options{
					Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" },
					Builtins: map[string]func() sdk.Extension{"odd": func() sdk.Extension {
						test.backend.Extension = saasstub.New(saasstub.Options{})
						return test.backend
					}},
				})
				return code, out.String()
			}
			_, acted := run(append(test.act, "--receipt", receipt)...)
			if code, said := run("receipt", "verify", receipt); code != test.verify || !strings.Contains(said, test.said) {
				t.Errorf("exit code %d: %s\nafter: %s", code, said, acted)
			}
		})
	}
}
