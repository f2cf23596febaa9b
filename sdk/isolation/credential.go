// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package isolation tells what a credential looks like, and looks for ones
// from inside of a sandbox. Extensions share it, so that a check means the same
// on each of them. It is small and needs no reflection, because it is linked
// into programs that are copied into sandboxes.
package isolation

import (
	"strings"
)

// secretWords are the words of a name that say that its value is a credential.
// Words are what underscores, dashes and dots separate.
var secretWords = []string{
	"TOKEN", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "APIKEY", "PAT", "JWT", "COOKIE", "BEARER",
}

// secretPairs are two words in a row that do.
var secretPairs = [][2]string{
	{"API", "KEY"}, {"ACCESS", "KEY"}, {"PRIVATE", "KEY"}, {"SECRET", "KEY"}, {"SIGNING", "KEY"}, {"ENCRYPTION", "KEY"}, {"ACCOUNT", "KEY"},
	{"AUTH", "KEY"}, {"MASTER", "KEY"}, {"SSH", "KEY"}, {"DEPLOY", "KEY"}, {"LICENSE", "KEY"}, {"CONNECTION", "STRING"}, {"DOCKER", "AUTH"}, {"NPM", "AUTH"},
}

// harmless are names that look like a credential's and have a meaning that
// everybody knows: PWD and OLDPWD are the shell's directory.
var harmless = []string{"PWD", "OLDPWD"}

// NamesSecret reports whether a variable, a label or an option has the name
// of a credential. A name that ends with FILE, PATH, DIR, URL or URI names
// where one lies, which is looked at by itself.
func NamesSecret(name string) bool {
	name = strings.ToUpper(name)
	for _, known := range harmless {
		if name == known {
			return false
		}
	}
	words := strings.FieldsFunc(name, func(r rune) bool { return r == '_' || r == '-' || r == '.' || r == '/' || r == ':' })
	if len(words) == 0 {
		return false
	}
	switch words[len(words)-1] {
	case "FILE", "PATH", "DIR", "URL", "URI", "NAME", "TTL", "TYPE", "EXPIRY", "TIMEOUT":
		return false
	}
	for i, word := range words {
		for _, secret := range secretWords {
			if word == secret {
				return true
			}
		}
		for _, pair := range secretPairs {
			if i > 0 && words[i-1] == pair[0] && word == pair[1] {
				return true
			}
		}
	}
	return false
}

// shape is a kind of credential that can be told by its beginning.
type shape struct {
	prefix string
	least  int    // bytes that follow at least, of the alphabet of tokens
	kind   string // what it is called
}

var shapes = []shape{
	{"AKIA", 16, "an AWS access key"}, {"ASIA", 16, "an AWS access key"},
	{"ghp_", 20, "a GitHub token"}, {"gho_", 20, "a GitHub token"}, {"ghu_", 20, "a GitHub token"}, {"ghs_", 20, "a GitHub token"}, {"ghr_", 20, "a GitHub token"},
	{"github_pat_", 20, "a GitHub token"},
	{"glpat-", 16, "a GitLab token"}, {"glrt-", 16, "a GitLab token"}, {"gldt-", 16, "a GitLab token"},
	{"xoxb-", 10, "a Slack token"}, {"xoxp-", 10, "a Slack token"}, {"xoxa-", 10, "a Slack token"}, {"xapp-", 10, "a Slack token"},
	{"npm_", 30, "an npm token"}, {"pypi-", 30, "a PyPI token"}, {"dckr_pat_", 20, "a Docker token"}, {"hf_", 30, "a Hugging Face token"},
	{"sk-ant-", 20, "an API key"}, {"sk-proj-", 20, "an API key"}, {"sk-", 32, "an API key"}, {"sk_live_", 16, "an API key"}, {"rk_live_", 16, "an API key"},
	{"AIza", 30, "a Google API key"}, {"ya29.", 20, "a Google access token"}, {"hvs.", 20, "a Vault token"}, {"SG.", 30, "a SendGrid key"},
	{"AGE-SECRET-KEY-1", 20, "an age key"},
}

// maxLooked bounds how much of a text is looked at, in bytes.
const maxLooked = 256 << 10

// LooksSecret reports whether a text holds a credential, and of what kind.
// What it returns names the kind and holds nothing of the text.
func LooksSecret(text string) (kind string, ok bool) {
	if len(text) > maxLooked {
		text = text[:maxLooked]
	}
	if strings.Contains(text, "-----BEGIN ") && strings.Contains(text, "PRIVATE KEY") {
		return "a private key", true
	}
	for _, s := range shapes {
		for at := 0; ; {
			found := strings.Index(text[at:], s.prefix)
			if found < 0 {
				break
			}
			begin := at + found
			at = begin + len(s.prefix)
			// Within a word it is not the beginning of a token.
			if begin > 0 && tokenByte(text[begin-1]) {
				continue
			}
			if run(text[at:]) >= s.least {
				return s.kind, true
			}
		}
	}
	switch {
	case hasJWT(text):
		return "a JSON web token", true
	case hasPasswordURL(text):
		return "an address with a password", true
	}
	return "", false
}

func tokenByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_' || b == '-'
}

// run counts the bytes of a token at the beginning of a text.
func run(text string) int {
	for i := range len(text) {
		if !tokenByte(text[i]) && text[i] != '.' && text[i] != '=' {
			return i
		}
	}
	return len(text)
}

// hasJWT finds three parts in base64, of which the first two begin with a
// JSON object.
func hasJWT(text string) bool {
	const object, least = "eyJ", 10
	for at := 0; ; {
		found := strings.Index(text[at:], object)
		if found < 0 {
			return false
		}
		begin := at + found
		at = begin + len(object)
		end := begin + run(text[begin:])
		parts := strings.Split(text[begin:end], ".")
		if len(parts) >= 3 && strings.HasPrefix(parts[1], object) && len(parts[0]) > least && len(parts[1]) > least && len(parts[2]) > least {
			return true
		}
	}
}

// hasPasswordURL finds scheme://user:password@host.
func hasPasswordURL(text string) bool {
	for {
		_, rest, found := strings.Cut(text, "://")
		if !found {
			return false
		}
		text = rest
		end := strings.IndexAny(rest, "/?# \t\r\n\"'<>,;")
		if end < 0 {
			end = len(rest)
		}
		at := strings.LastIndexByte(rest[:end], '@')
		if at < 0 {
			continue
		}
		_, password, has := strings.Cut(rest[:at], ":")
		// One that is filled in later is none: ${PASSWORD}, $PASSWORD.
		if has && password != "" && !strings.HasPrefix(password, "$") {
			return true
		}
	}
}

// Variable reports whether a variable holds a credential, and why: by its
// name or by what its value looks like.
func Variable(name, value string) (why string, ok bool) {
	if value == "" {
		return "", false
	}
	if kind, looks := LooksSecret(value); looks {
		return "looks like " + kind, true
	}
	if NamesSecret(name) {
		return "has the name of a credential", true
	}
	return "", false
}

// Arguments reports which argument of a command line holds a credential, from
// 0, and why.
func Arguments(args []string) (index int, why string, ok bool) {
	for i, arg := range args {
		if kind, looks := LooksSecret(arg); looks {
			return i, "looks like " + kind, true
		}
		option, value, assigned := strings.Cut(arg, "=")
		if !strings.HasPrefix(arg, "-") {
			// NAME=VALUE, as for env.
			if assigned && value != "" && !strings.ContainsAny(option, " \t\n/$\"'") && NamesSecret(option) {
				return i, "assigns a variable that has the name of a credential", true
			}
			continue
		}
		option = strings.TrimLeft(option, "-")
		if !NamesSecret(option) {
			continue
		}
		if assigned && value != "" && !strings.HasPrefix(value, "$") {
			return i, "is an option for a credential", true
		}
		if !assigned && i+1 < len(args) && args[i+1] != "" && !strings.HasPrefix(args[i+1], "-") && !strings.HasPrefix(args[i+1], "$") {
			return i + 1, "follows an option for a credential", true
		}
	}
	return 0, "", false
}
