// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config/fault"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Format is a syntax of profile documents.
type Format string

// The formats.
const (
	YAML Format = "yaml"
	JSON Format = "json"
	HCL  Format = "hcl"
)

// extensions are the file name extensions of the formats, in the order in
// which a store looks for them.
var extensions = []struct {
	extension string
	format    Format
}{{".yaml", YAML}, {".yml", YAML}, {".json", JSON}, {".hcl", HCL}}

// FormatOf returns the format that a file's name says.
func FormatOf(file string) (Format, error) {
	for _, known := range extensions {
		if strings.EqualFold(filepath.Ext(file), known.extension) {
			return known.format, nil
		}
	}
	return "", fmt.Errorf("%s: a profile's file ends in .yaml, .yml, .json or .hcl", file)
}

// ParseFile reads and validates one profile. Relative paths in it are
// relative to the file's directory. Its faults are [fault.Faults].
func ParseFile(file string) (sdk.Profile, error) {
	format, err := FormatOf(file)
	if err != nil {
		return sdk.Profile{}, err
	}
	handle, err := os.Open(file)
	if err != nil {
		return sdk.Profile{}, err
	}
	defer handle.Close()
	content, err := io.ReadAll(io.LimitReader(handle, sandbox.MaxDocument+1))
	if err != nil {
		return sdk.Profile{}, err
	}
	p, err := Parse(file, format, content)
	if err != nil {
		return sdk.Profile{}, err
	}
	dir, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return sdk.Profile{}, err
	}
	p = MapPaths(p, func(path string) string {
		if path == "" || filepath.IsAbs(path) || strings.Contains(path, "://") {
			return path
		}
		return filepath.Join(dir, path)
	})
	return p, nil
}

// Parse reads and validates one profile. The file's name is only for the
// messages. Relative paths stay as they are.
func Parse(file string, format Format, content []byte) (sdk.Profile, error) {
	b := &builder{file: file}
	if len(content) > sandbox.MaxDocument {
		return sdk.Profile{}, fault.Faults{{File: file, Message: fmt.Sprintf("larger than %d MiB", sandbox.MaxDocument>>20)}}
	}
	// Windows editors begin a file with a byte order mark.
	content = bytes.TrimPrefix(content, []byte("\xEF\xBB\xBF"))
	var root *value
	switch format {
	case JSON:
		root = readJSON(b, content)
	case HCL:
		root = readHCL(b, content)
	default:
		root = readYAML(b, content)
	}
	if root == nil || len(b.faults) > 0 {
		return sdk.Profile{}, b.faults.Err()
	}
	return check(b, root)
}

// check holds a tree against the table and the rules of package sandbox.
func check(b *builder, root *value) (sdk.Profile, error) {
	c := &checker{builder: b, places: map[string]place{}}
	if root.kind == kindNull {
		root = &value{kind: kindObject, at: root.at}
	}
	plain := c.value(document(), root, "")
	if root.kind != kindObject {
		return sdk.Profile{}, b.faults.Err()
	}
	var p sdk.Profile
	// The table has the type's own shape (a test says so), so both succeed.
	encoded, err := json.Marshal(plain)
	if err == nil {
		err = json.Unmarshal(encoded, &p)
	}
	if err != nil {
		b.add(root.at, "", "%s", err)
		return sdk.Profile{}, b.faults.Err()
	}
	shape := slices.Clone(b.faults)
	for _, problem := range sandbox.ValidateProfile(p) {
		// What has the wrong shape was left out of p; what the rules say
		// about its absence would mislead.
		if !slices.ContainsFunc(shape, func(f fault.Fault) bool { return related(f.Path, problem.Path) }) {
			b.add(c.locate(problem.Path), problem.Path, "%s", problem.Message)
		}
	}
	if err := b.faults.Err(); err != nil {
		return sdk.Profile{}, err
	}
	// The document is the canonical form: what it can't hold is a fault too.
	canonical, err := sandbox.ParseDocument(sandbox.Document(p))
	if err != nil {
		b.add(root.at, "", "%s", err)
	}
	return canonical, b.faults.Err()
}

// related reports whether one attribute is the other or within it.
func related(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	rest, within := strings.CutPrefix(b, a)
	return within && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// MapPaths returns a profile whose paths of this machine have gone through a
// function: of the image, when it is one, of a build context, of compose
// files, of a machine image.
func MapPaths(p sdk.Profile, through func(path string) string) sdk.Profile {
	if sandbox.IsImagePath(p.Image) {
		p.Image = through(p.Image)
	}
	if p.Build != nil {
		build := *p.Build
		build.Context = through(build.Context)
		p.Build = &build
	}
	if p.Compose != nil {
		compose := *p.Compose
		compose.Files = slices.Clone(compose.Files)
		for i := range compose.Files {
			compose.Files[i] = through(compose.Files[i])
		}
		p.Compose = &compose
	}
	if p.Machine != nil {
		machine := *p.Machine
		machine.Image = through(machine.Image)
		p.Machine = &machine
	}
	return p
}
