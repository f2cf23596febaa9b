// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// What is read of an OpenSSH client configuration, at most.
const (
	maxConfigFile  = 1 << 20 // bytes of one file
	maxConfigFiles = 256     // files, included ones too
	maxInclude     = 16      // includes in one another, as OpenSSH has it
)

// hostConfig is what an OpenSSH client configuration says about one host.
// Tokens like %h are not expanded yet.
type hostConfig struct {
	hostName       string
	user           string
	port           int
	identityFiles  []string
	identitiesOnly *bool
	knownHosts     []string
	jumps          []string
	proxySet       bool // ProxyJump or ProxyCommand was seen: the first counts
}

// configReader evaluates a configuration for one host in one pass, as
// OpenSSH does: the first value that is found for a keyword counts.
type configReader struct {
	alias string // as the user wrote the host
	home  string
	files int
	found hostConfig
}

// readSSHConfig reads the part of an OpenSSH client configuration that counts
// here. Other keywords are passed over; a condition that can't be decided
// here and a ProxyCommand for this host are errors, because connecting
// without them would mean another host or another way.
func readSSHConfig(file, alias, home string) (hostConfig, error) {
	r := configReader{alias: alias, home: home}
	content, err := r.open(file)
	if err == nil {
		err = r.read(file, content, true, 0)
	}
	return r.found, err
}

// open reads one file and bounds it.
func (r *configReader) open(file string) ([]byte, error) {
	if r.files++; r.files > maxConfigFiles {
		return nil, fmt.Errorf("more than %d files are included", maxConfigFiles)
	}
	handle, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	content, err := io.ReadAll(io.LimitReader(handle, maxConfigFile+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxConfigFile {
		return nil, fmt.Errorf("%s is larger than %d MiB", file, maxConfigFile>>20)
	}
	return content, nil
}

// read evaluates one file. What comes before its first block applies when
// active is set.
func (r *configReader) read(file string, content []byte, active bool, depth int) error {
	number := 0
	for line := range bytes.Lines(content) {
		number++
		keyword, args, err := splitConfigLine(string(line))
		if err != nil {
			return fmt.Errorf("%s:%d: %w", file, number, err)
		}
		if keyword == "" {
			continue
		}
		active, err = r.line(keyword, args, active, file, depth)
		if err != nil {
			return fmt.Errorf("%s:%d: %w", file, number, err)
		}
	}
	return nil
}

// line evaluates one line and returns whether what follows it applies.
func (r *configReader) line(keyword string, args []string, active bool, file string, depth int) (bool, error) {
	switch keyword {
	case "host":
		return matchAny(args, r.alias), nil
	case "match":
		return r.match(args)
	case "include":
		return active, r.include(args, active, file, depth)
	}
	if !active {
		return active, nil
	}
	return active, r.set(keyword, args)
}

// set takes one value, unless an earlier one counts.
func (r *configReader) set(keyword string, args []string) error {
	if !slices.Contains(usedKeywords, keyword) {
		return nil
	}
	if len(args) == 0 {
		return fmt.Errorf("%s has no value", keyword)
	}
	f, value := &r.found, args[0]
	switch keyword {
	case "hostname":
		if f.hostName == "" {
			f.hostName = value
		}
	case "user":
		if f.user == "" {
			f.user = value
		}
	case "port":
		port, err := parsePort(value)
		if err != nil {
			return err
		}
		if f.port == 0 {
			f.port = port
		}
	case "identityfile":
		f.identityFiles = append(f.identityFiles, value)
	case "identitiesonly":
		yes, err := yesNo(value)
		if err != nil {
			return fmt.Errorf("identitiesonly: %w", err)
		}
		if f.identitiesOnly == nil {
			f.identitiesOnly = &yes
		}
	case "userknownhostsfile":
		if f.knownHosts == nil {
			f.knownHosts = args
		}
	case "proxyjump":
		if !f.proxySet && value != "none" {
			f.jumps = strings.Split(value, ",")
		}
		f.proxySet = true
	case "proxycommand":
		if !f.proxySet && value != "none" {
			return errors.New("ProxyCommand is not supported: use ProxyJump, or set proxy_jump")
		}
		f.proxySet = true
	}
	return nil
}

var usedKeywords = []string{"hostname", "user", "port", "identityfile", "identitiesonly", "userknownhostsfile", "proxyjump", "proxycommand"}

// match evaluates a Match line, whose criteria must all hold.
func (r *configReader) match(args []string) (bool, error) {
	holds := true
	for len(args) > 0 {
		criterion, negated := strings.CutPrefix(strings.ToLower(args[0]), "!")
		args = args[1:]
		if criterion == "all" {
			holds = holds && !negated
			continue
		}
		subject := r.alias
		switch criterion {
		case "originalhost":
		case "host":
			if r.found.hostName != "" {
				subject = r.expandHostName()
			}
		default:
			return false, fmt.Errorf("the condition %q of Match is not supported: only all, host and originalhost are; name another ssh_config_file, or set what it has for this host in the configuration", clip(criterion))
		}
		if len(args) == 0 {
			return false, fmt.Errorf("the condition %q of Match has no pattern", criterion)
		}
		holds = holds && matchAny(strings.Split(args[0], ","), subject) != negated
		args = args[1:]
	}
	return holds, nil
}

func (r *configReader) expandHostName() string {
	return strings.NewReplacer("%%", "%", "%h", r.alias).Replace(r.found.hostName)
}

// include evaluates the files of an Include line, in the order of their
// names. What matches no file is no error, as with OpenSSH.
func (r *configReader) include(args []string, active bool, file string, depth int) error {
	if depth >= maxInclude {
		return fmt.Errorf("more than %d files include one another", maxInclude)
	}
	if !active {
		return nil
	}
	base := filepath.Join(r.home, ".ssh")
	if strings.HasPrefix(filepath.Clean(file), "/etc/ssh/") {
		base = "/etc/ssh"
	}
	for _, pattern := range args {
		pattern = expandHome(pattern, r.home)
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(base, pattern)
		}
		names, err := filepath.Glob(pattern)
		if err != nil {
			return fmt.Errorf("the pattern %q of Include: %w", clip(pattern), err)
		}
		for _, name := range names {
			content, err := r.open(name)
			if err == nil {
				err = r.read(name, content, active, depth+1)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// splitConfigLine returns the keyword of a line in lower case and its
// arguments. Arguments may be quoted; a # begins a comment.
func splitConfigLine(line string) (keyword string, args []string, err error) {
	line = strings.TrimSpace(line)
	if strings.ContainsRune(line, 0) {
		return "", nil, errors.New("a NUL byte")
	}
	end := strings.IndexAny(line, " \t=\"")
	if line == "" || line[0] == '#' {
		return "", nil, nil
	}
	if end < 0 {
		return strings.ToLower(line), nil, nil
	}
	keyword = strings.ToLower(line[:end])
	rest := strings.TrimLeft(line[end:], " \t")
	if after, found := strings.CutPrefix(rest, "="); found {
		rest = after
	}
	args, err = splitArgs(rest)
	return keyword, args, err
}

func splitArgs(text string) ([]string, error) {
	var args []string
	for {
		text = strings.TrimLeft(text, " \t")
		if text == "" || text[0] == '#' {
			return args, nil
		}
		arg, rest, err := nextArg(text)
		if err != nil {
			return nil, err
		}
		args, text = append(args, arg), rest
	}
}

// nextArg takes one argument off a text: as far as an unquoted blank.
func nextArg(text string) (arg, rest string, err error) {
	var b strings.Builder
	var quote byte
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\' && i+1 < len(text) && strings.IndexByte(`\"'`, text[i+1]) >= 0:
			i++
			b.WriteByte(text[i])
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == ' ' || c == '\t'):
			return b.String(), text[i:], nil
		default:
			b.WriteByte(c)
		}
	}
	if quote != 0 {
		return "", "", errors.New("a quote is not closed")
	}
	return b.String(), "", nil
}

func yesNo(text string) (bool, error) {
	switch strings.ToLower(text) {
	case "yes", "true":
		return true, nil
	case "no", "false":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither yes nor no", clip(text))
}

// matchAny tells whether a host matches one of the patterns and none of the
// negated ones.
func matchAny(patterns []string, host string) bool {
	matched := false
	for _, pattern := range patterns {
		pattern, negated := strings.CutPrefix(pattern, "!")
		if !matchPattern(pattern, host) {
			continue
		}
		if negated {
			return false
		}
		matched = true
	}
	return matched
}

// matchPattern matches * and ?, in time that is at most the product of the
// two lengths.
func matchPattern(pattern, text string) bool {
	p, t, star, mark := 0, 0, -1, 0
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, t
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == text[t]):
			p++
			t++
		case star >= 0:
			mark++
			p, t = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// expandHome replaces a leading ~/ by the user's home directory.
func expandHome(path, home string) string {
	if rest, found := strings.CutPrefix(path, "~/"); found {
		return filepath.Join(home, rest)
	}
	return path
}

// expandTokens replaces the tokens of ssh_config that are known here.
func expandTokens(text string, tokens map[byte]string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			b.WriteByte(text[i])
			continue
		}
		if i++; i == len(text) {
			return "", fmt.Errorf("%q ends with a lone %%", clip(text))
		}
		value, known := tokens[text[i]]
		if !known {
			return "", fmt.Errorf("%q: the token %%%c is not supported", clip(text), text[i])
		}
		b.WriteString(value)
	}
	return b.String(), nil
}
