// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sdk

import "context"

// Inspector is implemented by extensions that can tell how a sandbox is shut
// off from the credentials around it: what the backend itself says of it, and
// what a program of the extension's own sees inside of it. Package
// sdk/isolation holds that program and the rules for what a credential is.
type Inspector interface {
	// Inspect looks at a sandbox that is ready and returns what it found, check
	// by check. It changes nothing that a sandbox is made from, and it returns
	// no value of a variable, a file or an argument: names, places and what
	// something looks like are enough. A check that could not be made is a
	// finding with [VerdictUnknown] and the reason, or is left out, and is
	// never passed.
	Inspect(ctx context.Context, opts InspectOptions) (InspectResult, error)
}

// InspectOptions are the options of [Inspector.Inspect].
type InspectOptions struct {
	Target Target
	// Canary is the name of a secret that the sandbox was created with, and
	// CanaryValue its value, which serves nothing else: it may be found in its
	// file and nowhere else. Both are empty where the backend has no secrets.
	Canary      string
	CanaryValue Secret
}

// InspectResult is the result of [Inspector.Inspect].
type InspectResult struct {
	Findings []Finding
}

// IsolationCheck is one of the things that are looked at.
type IsolationCheck string

// The checks. Each is about one way in which a credential gets to a workload,
// or a workload to a credential.
const (
	CheckEnvironment IsolationCheck = "environment" // variables that hold a credential
	CheckArguments   IsolationCheck = "arguments"   // command lines and labels that hold one
	CheckFiles       IsolationCheck = "files"       // credential files that came with the image or the profile
	CheckTokens      IsolationCheck = "tokens"      // tokens that were mounted
	CheckSecrets     IsolationCheck = "secrets"     // a secret is in its file and nowhere else
	CheckAgents      IsolationCheck = "agents"      // sockets of SSH and GPG agents
	CheckEngine      IsolationCheck = "engine"      // sockets and ports of container engines
	CheckMetadata    IsolationCheck = "metadata"    // addresses at which clouds hand out credentials
	CheckMounts      IsolationCheck = "mounts"      // directories and files of the host
	CheckDevices     IsolationCheck = "devices"     // devices of the host
	CheckNamespaces  IsolationCheck = "namespaces"  // processes, network and memory shared with the host or a neighbour
	CheckPrivileges  IsolationCheck = "privileges"  // rights that reach beyond a sandbox
)

// Side is where a check was made from.
type Side string

// The sides.
const (
	SideProfile Side = "profile" // the profile's own document
	SideOutside Side = "outside" // what the backend says of the sandbox
	SideInside  Side = "inside"  // what a program sees in the sandbox, as its user
)

// IsolationChecks returns every check in the order of the documentation.
func IsolationChecks() []IsolationCheck {
	return []IsolationCheck{
		CheckEnvironment, CheckArguments, CheckFiles, CheckTokens, CheckSecrets, CheckAgents, CheckEngine, CheckMetadata,
		CheckMounts, CheckDevices, CheckNamespaces, CheckPrivileges,
	}
}

// Sides returns where a check has to be made from before it can be passed;
// empty for a check that is not known.
func (c IsolationCheck) Sides() []Side {
	switch c {
	case CheckEnvironment, CheckArguments:
		return []Side{SideProfile, SideOutside, SideInside}
	case CheckFiles:
		return []Side{SideProfile, SideInside} // what an image holds is not to be seen from outside
	case CheckMetadata:
		return []Side{SideInside} // so is what can be reached
	case CheckTokens, CheckSecrets, CheckAgents, CheckEngine, CheckMounts, CheckDevices, CheckNamespaces, CheckPrivileges:
		return []Side{SideOutside, SideInside}
	}
	return nil
}

// Verdict is what a check comes to.
type Verdict string

// The verdicts.
const (
	VerdictPassed  Verdict = "passed"
	VerdictFailed  Verdict = "failed"
	VerdictUnknown Verdict = "unknown" // it could not be told
)

// Valid reports whether v is one of the three verdicts.
func (v Verdict) Valid() bool {
	return v == VerdictPassed || v == VerdictFailed || v == VerdictUnknown
}

// Finding is what one check came to from one side.
type Finding struct {
	Check   IsolationCheck `json:"check"`
	Side    Side           `json:"side"`
	Verdict Verdict        `json:"verdict"`
	// Evidence says what was looked at and what was found, a line each; no line
	// holds a secret value.
	Evidence []string `json:"evidence"`
}
