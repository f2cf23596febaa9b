// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"strings"
	"testing"
)

// Terraform gets the plugin, everyone else the command line.
func TestFaces(t *testing.T) {
	cases := []struct {
		args   string
		cookie string
		want   bool
	}{
		{"/x/terraform-provider-sandboxer_v0.1.0", "abc", true},
		{"/x/terraform-provider-sandboxer", "", true},
		{"/x/terraform-provider-sandboxer -debug", "", true},
		{"/x/terraform-provider-sandboxer --debug", "", true},
		{"/x/terraform-provider-sandboxer list", "", false},
		{"/x/other", "abc", true},
		{"/x/sandboxer", "", false},
		{"/x/sandboxer list", "", false},
		{"/x/sandboxer list", "abc", false},
		{"/x/sandboxer -debug", "", false},
	}
	for _, c := range cases {
		got := plugin(strings.Fields(c.args), func(name string) string {
			if name == cookie {
				return c.cookie
			}
			return ""
		})
		if got != c.want {
			t.Errorf("%s with the cookie %q: plugin = %v, want %v", c.args, c.cookie, got, c.want)
		}
	}
}

func TestVersion(t *testing.T) {
	before := version
	t.Cleanup(func() { version = before })
	if version = "1.2.3"; programVersion() != "1.2.3" {
		t.Error(programVersion())
	}
	if version = ""; programVersion() == "" {
		t.Error("no version")
	}
}
