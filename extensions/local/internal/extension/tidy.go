// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// What a killed creation, snapshot or deletion left half done has no name
// that anything would find, so it is collected here.

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
)

// staleAfter is how long half done work is left alone: longer than any of it
// can take while its maker lives.
const staleAfter = 2 * snapshotDeadline

// tidy removes what was left half done. It is best effort: what can't be
// removed now is tried again by the next create.
func (s store) tidy(now time.Time) {
	for _, dir := range []string{"sandboxes", "snapshots", "images", "bin"} {
		entries, err := os.ReadDir(s.path(dir))
		if err != nil {
			continue
		}
		for _, entry := range entries {
			if !strings.HasPrefix(entry.Name(), ".") && !strings.HasSuffix(entry.Name(), ".partial") {
				continue
			}
			path := filepath.Join(s.path(dir), entry.Name())
			info, err := os.Lstat(path)
			if err != nil || now.Sub(info.ModTime()) < staleAfter || record.SupervisorAlive(path) {
				continue
			}
			_ = os.RemoveAll(path)
		}
	}
}
