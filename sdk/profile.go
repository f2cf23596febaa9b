// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sdk

// Profile is a kind of sandbox: what it is made from, its limits, policy and
// needs. The JSON form is the profile document; field names are the same in
// HCL, YAML and JSON. Durations are Go durations ("45m"), sizes are numbers
// with a unit ("512MiB").
type Profile struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`

	// What it is made from: at most one. None is the backend's own root,
	// where it has one.
	Image    string          `json:"image,omitempty"` // reference, or path of an OCI layout, archive or rootfs tar
	Build    *BuildSource    `json:"build,omitempty"`
	Compose  *ComposeSpec    `json:"compose,omitempty"`
	Machine  *MachineSpec    `json:"machine,omitempty"`
	Template string          `json:"template,omitempty"`
	Command  []string        `json:"command,omitempty"` // main process; none keeps the sandbox idle
	Workdir  string          `json:"workdir,omitempty"`
	User     string          `json:"user,omitempty"`
	Env      EnvMap          `json:"env,omitempty"`
	Files    map[string]File `json:"files,omitempty"`   // by absolute path
	Setup    [][]string      `json:"setup,omitempty"`   // run after start, before ready
	Ports    map[string]int  `json:"ports,omitempty"`   // by name, TCP
	Publish  string          `json:"publish,omitempty"` // loopback (default) or host
	Runtime  string          `json:"runtime,omitempty"`
	Limits   *Limits         `json:"limits,omitempty"`
	Network  *Network        `json:"network,omitempty"`
	Ready    *Ready          `json:"ready,omitempty"`
	TTL      *TTL            `json:"ttl,omitempty"`
	OnExpiry OnExpiry        `json:"on_expiry,omitempty"`
	// Durations as in [CreateOptions].
	IdleTimeout       string `json:"idle_timeout,omitempty"`
	ExpirySnapshotTTL string `json:"expiry_snapshot_ttl,omitempty"`
	PausedTTL         string `json:"paused_ttl,omitempty"`
	// What the sandboxes of the profile that are alive may cost together, in
	// US dollars; zero is no bound.
	MaxCostPerHour float64           `json:"max_cost_per_hour,omitempty"`
	MaxCommitted   float64           `json:"max_committed,omitempty"`
	Requires       map[Feature]Class `json:"requires,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
}

// EnvMap is environment variables by name.
type EnvMap = map[string]string

// BuildSource is an image built from a context directory.
type BuildSource struct {
	Context    string            `json:"context"`
	Dockerfile string            `json:"dockerfile,omitempty"`
	Args       map[string]string `json:"args,omitempty"`
	Target     string            `json:"target,omitempty"`
}

// ComposeSpec is a Compose project.
type ComposeSpec struct {
	Files    []string `json:"files"`
	Profiles []string `json:"profiles,omitempty"`
	Services []string `json:"services,omitempty"`
}

// MachineSpec is a virtual machine image.
type MachineSpec struct {
	Image  string `json:"image"`
	Format string `json:"format,omitempty"`
}

// File is one file placed in the sandbox before its first instruction.
type File struct {
	Content string `json:"content"`
	Mode    string `json:"mode,omitempty"` // octal, default 0644
}

// Limits bound a sandbox. What is set must be enforced by the backend or the
// profile is refused at plan.
type Limits struct {
	CPUs   float64 `json:"cpus,omitempty"`
	Memory string  `json:"memory,omitempty"`
	Pids   int64   `json:"pids,omitempty"`
	Disk   string  `json:"disk,omitempty"`
	Wall   string  `json:"wall,omitempty"` // upper bound on the life, whatever is extended
}

// The egress policies.
const (
	EgressDeny = "deny" // nothing but Allow
	EgressOpen = "open"
	EgressNone = "none" // no network at all
)

// Network is a sandbox's network policy. The default is [EgressNone].
type Network struct {
	Egress string   `json:"egress,omitempty"`
	Allow  []string `json:"allow,omitempty"` // host:port, CIDR:port, *.domain:port
}

// Ready is the check that makes a sandbox ready: exactly one of HTTP, TCP,
// Exec and Log.
type Ready struct {
	HTTP    *HTTPCheck `json:"http,omitempty"`
	TCP     *TCPCheck  `json:"tcp,omitempty"`
	Exec    []string   `json:"exec,omitempty"` // ready when it exits with 0
	Log     string     `json:"log,omitempty"`  // regular expression on a line of the log
	Timeout string     `json:"timeout,omitempty"`
}

// HTTPCheck passes on a 2xx or 3xx answer.
type HTTPCheck struct {
	Port int    `json:"port"`
	Path string `json:"path,omitempty"`
}

// TCPCheck passes when a connection is accepted.
type TCPCheck struct {
	Port int `json:"port"`
}

// TTL is how long a sandbox lives.
type TTL struct {
	Default string `json:"default,omitempty"`
	Max     string `json:"max,omitempty"`
	// Exempt allows a life without the configured maximum and says why.
	Exempt string `json:"exempt,omitempty"`
}
