// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"strings"
	"testing"
)

// The page has every command, those below others included, and nothing of
// the machine that rendered it.
func TestCommandLinePage(t *testing.T) {
	t.Setenv("SANDBOXER_FLEET", "not-in-the-page")
	page, err := renderCLI(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"## sandboxer\n", "## sandboxer create\n", "## sandboxer snapshot create\n", "## sandboxer version\n", "--on-expiry"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, unwanted := range []string{"not-in-the-page", "## sandboxer help", "Global Flags"} {
		if strings.Contains(string(page), unwanted) {
			t.Errorf("the page has %q", unwanted)
		}
	}
}

func TestChildren(t *testing.T) {
	got := children("About.\n\nAvailable Commands:\n  completion  of the library\n  create      makes\n  help        of the library\n  reap        removes\n\nFlags:\n  -x  no command\n")
	if strings.Join(got, " ") != "create reap" {
		t.Errorf("%q", got)
	}
	if got := children("No commands.\n\nFlags:\n  -x\n"); len(got) != 0 {
		t.Errorf("%q", got)
	}
}
