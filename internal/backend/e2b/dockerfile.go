// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

// A Dockerfile as steps of the vendor's builder: those instructions that need
// no file of this machine.

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// buildStep is one step of a build. The forms are those that the vendor's own
// client makes of a Dockerfile.
type buildStep struct {
	Type  string   `json:"type"`
	Args  []string `json:"args"`
	Force bool     `json:"force"`
}

// buildSpec is what a template is built from.
type buildSpec struct {
	FromImage string      `json:"fromImage"`
	Steps     []buildStep `json:"steps"`
	Force     bool        `json:"force"`
}

// maxDockerfile bounds what is read of one.
const maxDockerfile = 1 << 20

// readBuild reads the Dockerfile of a build.
func readBuild(b sdk.BuildSource) (buildSpec, error) {
	name := b.Dockerfile
	if name == "" {
		name = "Dockerfile"
	}
	if !filepath.IsLocal(name) {
		return buildSpec{}, sdk.Invalid("build.dockerfile", "%.80q leaves the context", name)
	}
	if b.Target != "" {
		return buildSpec{}, sdk.Unsupported("build.target", "E2B builds one stage")
	}
	root, err := os.OpenRoot(b.Context)
	if err != nil {
		return buildSpec{}, sdk.Invalid("build.context", "it can't be opened: %s", err)
	}
	defer root.Close()
	file, err := root.Open(name)
	if err != nil {
		return buildSpec{}, sdk.Invalid("build.dockerfile", "it can't be opened: %s", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxDockerfile+1))
	if err == nil && len(text) > maxDockerfile {
		err = fmt.Errorf("it is longer than %d bytes", maxDockerfile)
	}
	if err != nil {
		return buildSpec{}, sdk.Invalid("build.dockerfile", "it can't be read: %s", err)
	}
	return parseDockerfile(string(text), b.Args)
}

// parseDockerfile turns a Dockerfile into steps. What it can't turn is refused
// with its line, and never left out.
func parseDockerfile(text string, args map[string]string) (buildSpec, error) {
	spec := buildSpec{Steps: []buildStep{{Type: "USER", Args: []string{"root"}}, {Type: "WORKDIR", Args: []string{"/"}}}}
	used := map[string]bool{}
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		at := i + 1
		line := strings.TrimSpace(lines[i])
		for strings.HasSuffix(line, "\\") && i+1 < len(lines) {
			i++
			next := strings.TrimSpace(lines[i])
			if strings.HasPrefix(next, "#") {
				next = "\\" // a comment in between; the instruction goes on
			}
			line = strings.TrimSuffix(line, "\\") + next
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		if err := spec.instruction(strings.ToUpper(word), strings.TrimSpace(rest), args, used); err != nil {
			kind := sdk.ErrInvalid
			if errors.Is(err, errors.ErrUnsupported) {
				kind = sdk.ErrUnsupported
			}
			return spec, &sdk.Error{Kind: kind, Path: "build.dockerfile", Message: fmt.Sprintf("line %d: %s", at, err)}
		}
	}
	if spec.FromImage == "" {
		return spec, sdk.Invalid("build.dockerfile", "it has no FROM")
	}
	for name := range args {
		if !used[name] {
			return spec, sdk.Invalid("build.args", "the Dockerfile has no ARG %.80q", name)
		}
	}
	return spec, nil
}

// cannot is an instruction that the vendor's builder is not asked for.
func cannot(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errors.ErrUnsupported)
}

func (s *buildSpec) instruction(word, rest string, args map[string]string, used map[string]bool) error {
	if rest == "" {
		return fmt.Errorf("%.40s has no argument", word)
	}
	if s.FromImage == "" && word != "FROM" {
		return cannot("%.40s before FROM", word)
	}
	switch word {
	case "FROM":
		fields := strings.Fields(rest)
		switch {
		case s.FromImage != "":
			return cannot("a second stage")
		case strings.ContainsAny(fields[0], "$") || strings.HasPrefix(fields[0], "--"):
			return cannot("FROM with a variable or a flag")
		case fields[0] == "scratch":
			return cannot("FROM scratch")
		}
		s.FromImage = fields[0]
	case "RUN":
		if strings.HasPrefix(rest, "[") || strings.HasPrefix(rest, "--") || strings.Contains(rest, "<<") {
			return cannot("RUN as a list, with flags or with a here-document")
		}
		s.add("RUN", rest)
	case "WORKDIR", "USER":
		s.add(word, rest)
	case "ENV":
		pairs, err := assignments(rest)
		if err != nil {
			return err
		}
		s.add("ENV", pairs...)
	case "ARG":
		name, value, has := strings.Cut(rest, "=")
		used[name] = true
		if given, ok := args[name]; ok {
			value, has = given, true
		}
		if has {
			s.add("ENV", name, strings.Trim(value, "\"'"))
		}
	case "LABEL", "EXPOSE", "MAINTAINER": // nothing of them is in a sandbox
	case "CMD", "ENTRYPOINT":
		return cannot("%s: name it as the command of the profile", word)
	default:
		return cannot("%.40s", word)
	}
	return nil
}

func (s *buildSpec) add(kind string, args ...string) {
	s.Steps = append(s.Steps, buildStep{Type: kind, Args: args})
}

// assignments reads NAME=VALUE words, with quotes, or the old NAME VALUE.
func assignments(text string) ([]string, error) {
	if name, value, ok := strings.Cut(text, " "); ok && !strings.Contains(name, "=") {
		return []string{name, strings.TrimSpace(value)}, nil
	}
	var words []string
	var word strings.Builder
	var quote rune
	begun := false
	for _, r := range text {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '"' || r == '\''):
			quote, begun = r, true
		case quote == 0 && (r == ' ' || r == '\t'):
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	if quote != 0 {
		return nil, errors.New("a quote is not closed")
	}
	if begun {
		words = append(words, word.String())
	}
	var pairs []string
	for _, w := range words {
		name, value, ok := strings.Cut(w, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%.80q is not NAME=VALUE", w)
		}
		pairs = append(pairs, name, value)
	}
	return pairs, nil
}
