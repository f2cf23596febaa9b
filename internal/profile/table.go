// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"maps"
	"slices"
	"sync"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// node describes what may stand in one place of a document. The one table of
// them is what parsing, the JSON Schema and the documentation go by.
type node struct {
	is          kind
	description string
	fields      []field // of an object with fixed keys
	elements    *node   // of a list, or of an object with free keys
	keys        string  // pattern of free keys, a regular expression
	required    bool
	// rules are the semantic rules of package sandbox in JSON Schema's words,
	// as far as it has words for them. Parsing does not read them.
	rules map[string]any
	// unknown says that there is no key of a name, where that needs words of
	// its own.
	unknown func(key string) string
}

// field is one key of an object, in the order of the documentation.
type field struct {
	key string
	node
}

// The patterns are those of sandbox.ValidateProfile, in the dialect of ECMA
// 262 that JSON Schema asks for.
const (
	nameRule    = `^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`
	envRule     = `^[A-Za-z_][A-Za-z0-9_]*$`
	portRule    = `^[a-z][a-z0-9_-]{0,31}$`
	labelRule   = `^[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?$`
	userRule    = `^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`
	runtimeRule = `^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`
	modeRule    = `^0?[0-7]{3,4}$`
	pathRule    = `^/`
	sizeRule    = `^[0-9]*\.?[0-9]+ *(([KMGT]iB)|([KMGT]?B))$`
	timeRule    = `^(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+$`
)

func text(description string, rules ...map[string]any) node {
	n := node{is: kindString, description: description}
	if len(rules) > 0 {
		n.rules = rules[0]
	}
	return n
}

func pattern(rule string) map[string]any { return map[string]any{"pattern": rule} }

func oneOf(choices ...string) map[string]any {
	return map[string]any{"enum": append([]string{""}, choices...)}
}

// duration and size may be empty, which means unset, like every text.
func duration(description string) node {
	return text(description+", as a Go duration: `45m`, `1h30m`", map[string]any{"anyOf": []any{
		map[string]any{"const": ""},
		map[string]any{"allOf": []any{pattern(timeRule), pattern("[1-9]")}},
	}})
}

func size(description string) node {
	return text(description+", as a number with a unit: `512MiB`, `2GB`", map[string]any{"anyOf": []any{
		map[string]any{"const": ""},
		map[string]any{"allOf": []any{pattern(sizeRule), pattern("[1-9]")}},
	}})
}

// money is an amount, zero is unset.
func money(description string) node {
	return node{
		is: kindNumber, description: description + ", in US dollars by the prices of the backend. A create or extend beyond it is refused",
		rules: map[string]any{"minimum": 0, "maximum": sandbox.MaxMoney.Dollars()},
	}
}

// and adds to what is said about a node.
func (n node) and(more string) node {
	n.description += more
	return n
}

func texts(description string) node {
	element := text("")
	return node{is: kindList, description: description, elements: &element}
}

func command(description string) node {
	n := texts(description)
	n.rules = map[string]any{"prefixItems": []any{map[string]any{"minLength": 1}}}
	return n
}

func textMap(description, keys string) node {
	element := text("")
	return node{is: kindObject, description: description, elements: &element, keys: keys}
}

func object(description string, fields ...field) node {
	return node{is: kindObject, description: description, fields: fields}
}

func needed(n node) node {
	n.required = true
	return n
}

func optional(rule string) map[string]any {
	return map[string]any{"anyOf": []any{map[string]any{"const": ""}, pattern(rule)}}
}

func tcpPort(description string) node {
	return node{is: kindInteger, description: description, rules: map[string]any{"minimum": 1, "maximum": 65535}}
}

// document is the table: a profile document, from the top. It is made when
// first used: Terraform starts the program several times in each run.
var document = sync.OnceValue(makeDocument)

func makeDocument() *node {
	n := object("A profile: a kind of sandbox.",
		field{"name", needed(text("Name of the profile.", pattern(nameRule)))},
		field{"description", text("What the profile is for, in a sentence or two.")},

		field{"image", text("Image to make it from: a reference, or the path of an OCI layout, an archive or a root filesystem tar. A path is absolute or begins with `./` or `../`, and is relative to the file of the profile. Without any of `image`, `build`, `compose`, `machine` and `template`, the backend's own root is used.")},
		field{"build", object("Image to build and make it from. Not on `local`.",
			field{"context", needed(text("Directory that is built, relative to the file of the profile.", map[string]any{"minLength": 1}))},
			field{"dockerfile", text("Name of the Dockerfile in the context. Default: `Dockerfile`.")},
			field{"args", textMap("Build arguments by name.", "")},
			field{"target", text("Stage that is built. Default: the last.")},
		)},
		field{"compose", object("Compose project to make it from. Not on `local`.",
			field{"files", func() node {
				n := needed(texts("Compose files, relative to the file of the profile."))
				n.rules = map[string]any{"minItems": 1}
				return n
			}()},
			field{"profiles", texts("Compose profiles to enable.")},
			field{"services", texts("Services to start. Default: all.")},
		)},
		field{"machine", object("Virtual machine image to make it from. Not on `local`.",
			field{"image", needed(text("Path of the machine image, relative to the file of the profile.", map[string]any{"minLength": 1}))},
			field{"format", text("Format of the image. Default: detected.")},
		)},
		field{"template", text("Name of a template of the backend to make it from. Not on `local`.")},

		field{"command", command("Main process: program and arguments. Without one, the sandbox idles. A sandbox goes on when its command ends; set `ready` to find out.")},
		field{"workdir", text("Working directory, absolute.", optional(pathRule))},
		field{"user", text("User to run as: a name, a uid, or uid:gid.", optional(userRule))},
		field{"env", textMap("Environment variables by name.", envRule)},
		field{"files", node{is: kindObject, description: "Files that are placed before the first instruction, by absolute path.", keys: pathRule, elements: &node{
			is: kindObject, description: "One file.", fields: []field{
				{"content", needed(text("Content of the file."))},
				{"mode", text("Mode in octal. Default: `0644`.", optional(modeRule))},
			},
		}}},
		field{"setup", func() node {
			step := command("One command.")
			step.rules = map[string]any{"minItems": 1, "prefixItems": []any{map[string]any{"minLength": 1}}}
			return node{is: kindList, description: "Commands that run one after the other, after the start and before the readiness check.", elements: &step}
		}()},
		field{"ports", func() node {
			port := tcpPort("")
			return node{is: kindObject, description: "TCP ports that the sandbox serves, by name. Each appears in `endpoints`.", keys: portRule, elements: &port}
		}()},
		field{"publish", text("Where ports are published: `loopback` or `host`. Default: `loopback`.", oneOf("loopback", "host"))},
		field{"runtime", text("Runtime of the backend to use, where it has several. Not on `local`.", optional(runtimeRule))},
		field{"limits", object("Bounds. What is set must be enforced by the backend, or the profile is refused there.",
			field{"cpus", node{is: kindNumber, description: "Processors, fractions allowed.", rules: map[string]any{"anyOf": []any{
				map[string]any{"const": 0}, map[string]any{"minimum": 0.01, "maximum": 4096},
			}}}},
			field{"memory", size("Memory").and("; on `local` about 40 MB of it are the runtime's own, and going over it ends the whole sandbox, which is then lost")},
			field{"pids", node{is: kindInteger, description: "Processes and threads.", rules: map[string]any{"minimum": 0, "maximum": 4 << 20}}},
			field{"disk", size("Space that the sandbox may write")},
			field{"wall", duration("Longest life, whatever is extended")},
		)},
		field{"network", node{is: kindObject, description: "Network policy.", fields: []field{
			{"egress", text("What the sandbox may reach: `none` (no network at all), `deny` (nothing but `allow`), `open`. Default: `none`.", oneOf(sdk.EgressDeny, sdk.EgressOpen, sdk.EgressNone))},
			{"allow", texts("What may be reached with `egress = \"deny\"`: `host:port`, `*.domain:port` for every name below it, `address:port`, `CIDR:port` or `[IPv6 CIDR]:port`; without a port, every port. See the guide on network policy.")},
		}, rules: map[string]any{
			"if":   map[string]any{"properties": map[string]any{"allow": map[string]any{"type": "array", "minItems": 1}}, "required": []string{"allow"}},
			"then": map[string]any{"properties": map[string]any{"egress": map[string]any{"const": sdk.EgressDeny}}, "required": []string{"egress"}},
		}}},
		field{"ready", node{is: kindObject, description: "Check that makes the sandbox ready: exactly one of `http`, `tcp`, `exec` and `log`.", fields: []field{
			{"http", object("Ready on a 2xx or 3xx answer.",
				field{"port", needed(tcpPort("Port in the sandbox."))},
				field{"path", text("Path that is asked for. Default: `/`.", optional(pathRule))},
			)},
			{"tcp", object("Ready when a connection is accepted.", field{"port", needed(tcpPort("Port in the sandbox."))})},
			{"exec", command("Ready when this command exits with 0.")},
			{"log", text("Ready when a line of the main process's output matches this regular expression.")},
			{"timeout", duration("How long to wait").and("; default `60s`, after which the create fails and removes the sandbox, or keeps it with `on_failed`")},
		}, rules: map[string]any{"oneOf": []any{isSet("http", nil), isSet("tcp", nil), isSet("exec", map[string]any{"type": "array", "minItems": 1}), isSet("log", map[string]any{"type": "string", "minLength": 1})}}}},
		field{"ttl", object("How long sandboxes of the profile live.",
			field{"default", duration("Life of a sandbox whose creator names none")},
			field{"max", duration("Longest life, extensions included")},
			field{"exempt", text("Reason why the installation's maximum does not hold for this profile. It is shown wherever the sandbox is.")},
		)},
		field{"on_expiry", text("What happens at the end, by the deadline or by `idle_timeout`: `destroy`, `snapshot` (then destroy) or `pause`. Default: `destroy`.",
			oneOf(string(sdk.OnExpiryDestroy), string(sdk.OnExpirySnapshot), string(sdk.OnExpiryPause)))},
		field{"idle_timeout", duration("Second clock, which can only end a sandbox earlier: how long it lives without being used. What counts as use is what the backend says of `idle_exec`, `idle_files`, `idle_ports` and `idle_processes`; looking at a sandbox is none").and(". Default: no such clock")},
		field{"expiry_snapshot_ttl", duration("How long the snapshot that `on_expiry = \"snapshot\"` makes is kept").and("; default `168h`")},
		field{"paused_ttl", duration("How long a sandbox that `on_expiry = \"pause\"` paused is kept before it is destroyed, within its maximum").and("; default `24h`")},
		field{"max_cost_per_hour", money("What the sandboxes of the profile that are alive may cost together for each hour")},
		field{"max_committed", money("What the sandboxes of the profile that are alive may cost together from their creation to their deadlines")},
		field{"requires", requires()},
		field{"labels", textMap("Labels of every sandbox of the profile. Keys that begin with `"+sdk.LabelPrefix+"` are reserved.", labelRule)},
	)
	return &n
}

// isSet is the rule that a key is there and not null.
func isSet(key string, shape map[string]any) map[string]any {
	if shape == nil {
		shape = map[string]any{"type": "object"}
	}
	return map[string]any{"required": []string{key}, "properties": map[string]any{key: shape}}
}

func requires() node {
	n := node{is: kindObject, description: "Guarantees that a backend must give: the least class by feature.", unknown: sandbox.UnknownFeature}
	for _, feature := range sdk.Features() {
		n.fields = append(n.fields, field{string(feature), text("Least class of the feature `"+string(feature)+"`.", map[string]any{"enum": []string{
			string(sdk.ClassEnforced), string(sdk.ClassBestEffort), string(sdk.ClassEmulated), string(sdk.ClassUnverifiable),
		}})})
	}
	return n
}

// keysOf returns the fixed keys of an object.
func (n *node) keysOf() map[string]*node {
	keys := make(map[string]*node, len(n.fields))
	for i := range n.fields {
		keys[n.fields[i].key] = &n.fields[i].node
	}
	return keys
}

// names returns the fixed keys of an object, sorted.
func (n *node) names() []string { return slices.Sorted(maps.Keys(n.keysOf())) }
