// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-validators/float64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport"
)

// providerModel is the provider block.
type providerModel struct {
	Fleet                types.String  `tfsdk:"fleet"`
	Backend              types.String  `tfsdk:"backend"`
	DefaultTTL           duration      `tfsdk:"default_ttl"`
	MaxTTL               duration      `tfsdk:"max_ttl"`
	MaxSandboxes         types.Int64   `tfsdk:"max_sandboxes"`
	MaxSandboxesPerOwner types.Int64   `tfsdk:"max_sandboxes_per_owner"`
	MaxCostPerHour       types.Float64 `tfsdk:"max_cost_per_hour"`
	MaxCommitted         types.Float64 `tfsdk:"max_committed"`
	Prices               types.Map     `tfsdk:"prices"`
	OnUnreachable        types.String  `tfsdk:"on_unreachable"`
	Owner                types.String  `tfsdk:"owner"`
	Task                 types.String  `tfsdk:"task"`
	Run                  types.String  `tfsdk:"run"`
	StateDir             types.String  `tfsdk:"state_dir"`
	ExtensionDirs        types.List    `tfsdk:"extension_dirs"`
	ProfileDirs          types.List    `tfsdk:"profile_dirs"`
	Backends             types.Map     `tfsdk:"backends"`
	Local                types.Object  `tfsdk:"local"`
	Docker               types.Object  `tfsdk:"docker"`
	E2B                  types.Object  `tfsdk:"e2b"`
	Modal                types.Object  `tfsdk:"modal"`
}

// backendModel is one entry of backends.
type backendModel struct {
	Extension  types.String `tfsdk:"extension"`
	ConfigJSON types.String `tfsdk:"config_json"`
	Path       types.String `tfsdk:"path"`
	SHA256     types.String `tfsdk:"sha256"`
	Env        types.List   `tfsdk:"env"`
	Local      types.Object `tfsdk:"local"`
	Docker     types.Object `tfsdk:"docker"`
	E2B        types.Object `tfsdk:"e2b"`
	Modal      types.Object `tfsdk:"modal"`
}

// priceModel is one entry of prices.
type priceModel struct {
	SandboxHour types.Float64 `tfsdk:"sandbox_hour"`
	CPUHour     types.Float64 `tfsdk:"cpu_hour"`
	MemoryHour  types.Float64 `tfsdk:"memory_gib_hour"`
	CPUs        types.Float64 `tfsdk:"cpus"`
	Memory      types.String  `tfsdk:"memory"`
}

func (p priceModel) price() config.Price {
	return config.Price{
		SandboxHour: p.SandboxHour.ValueFloat64(), CPUHour: p.CPUHour.ValueFloat64(), MemoryHour: p.MemoryHour.ValueFloat64(),
		CPUs: p.CPUs.ValueFloat64(), Memory: p.Memory.ValueString(),
	}
}

// priceAttributes is one entry of prices, in the words of the configuration.
func priceAttributes() map[string]schema.Attribute {
	attributes := map[string]schema.Attribute{}
	for _, a := range config.PriceAttributes() {
		if a.Type == config.TypeString {
			attributes[a.Name] = schema.StringAttribute{Optional: true, MarkdownDescription: a.Description}
		} else {
			attributes[a.Name] = schema.Float64Attribute{Optional: true, MarkdownDescription: a.Description}
		}
	}
	return attributes
}

// localAttributes is the configuration of the embedded backend.
func localAttributes() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"state_dir":        schema.StringAttribute{Optional: true, MarkdownDescription: "Directory of its sandboxes, images and snapshots. Default: the provider's `state_dir`."},
		"image_cache_size": schema.StringAttribute{Optional: true, MarkdownDescription: "The most that unpacked images may take of the disk, for example `20GiB`. Those that no sandbox or snapshot needs are removed, the least recently used first. Default: `10GiB`."},
		"max_state_size":   schema.StringAttribute{Optional: true, MarkdownDescription: "The most that sandboxes, snapshots and images may take of the disk, for example `100GiB`. What would go beyond it is refused before it is begun; a sandbox with `limits.disk` counts with all of it. Default: no bound."},
	}
}

// dockerAttributes is the configuration of the Docker backend, in the words of
// its own schema.
func dockerAttributes() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"host":          schema.StringAttribute{Optional: true, MarkdownDescription: "Address of the engine: `unix:///path`, `npipe:////./pipe/name`, `tcp://host:port` or `ssh://user@host:port`, with the path of the engine's socket on that host where it is not found by itself. Default: `context`, else `DOCKER_HOST`, else the Docker context in use, else the socket of this machine's engine."},
		"context":       schema.StringAttribute{Optional: true, MarkdownDescription: "Name of a Docker context, as `docker context ls` shows them."},
		"cert_path":     schema.StringAttribute{Optional: true, MarkdownDescription: "Directory with `ca.pem`, `cert.pem` and `key.pem` for `tcp://`. Default: `DOCKER_CERT_PATH` where the host is that of `DOCKER_HOST`."},
		"reaper":        schema.StringAttribute{Optional: true, MarkdownDescription: "Who ends sandboxes at their deadline when every client is gone: `container` (default), one small container per fleet on the engine, or `external`, whoever runs `sandboxer reap`."},
		"reaper_socket": schema.StringAttribute{Optional: true, MarkdownDescription: "Path of the engine's socket on the engine's own machine, for the reaper container. Default: the one of `host` where that is a socket, the one that was found behind `ssh://`, else `/var/run/docker.sock`."},
		"ssh": schema.SingleNestedAttribute{
			Optional: true, Attributes: sshAttributes(),
			MarkdownDescription: "How an engine behind `ssh://` is reached. Nothing is needed where the agent or `~/.ssh` has a key that is let in, and `known_hosts` the key of the host.",
		},
	}
}

// e2bAttributes is the configuration of the E2B backend, in the words of its
// own schema.
func e2bAttributes() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"api_key":         schema.StringAttribute{Optional: true, Sensitive: true, MarkdownDescription: "API key of the team. Better kept out of files: by default it is taken from `E2B_API_KEY`."},
		"api_key_file":    schema.StringAttribute{Optional: true, MarkdownDescription: "Path of a file that holds the key and nothing else. It is read when the key is first needed."},
		"api_key_command": schema.ListAttribute{Optional: true, ElementType: types.StringType, MarkdownDescription: "Command that prints the key, with its arguments; it is run when the key is first needed, without a shell, for at most 30 s."},
		"domain":          schema.StringAttribute{Optional: true, MarkdownDescription: "Domain of the service. Default: `E2B_DOMAIN`, else `e2b.app`."},
		"api_url":         schema.StringAttribute{Optional: true, MarkdownDescription: "Address of the control plane: HTTPS, or HTTP on this machine. Default: `E2B_API_URL`, else `https://api.` and the domain."},
		"sandbox_url":     schema.StringAttribute{Optional: true, MarkdownDescription: "Address that every sandbox is reached at, which then goes by headers. Default: `E2B_SANDBOX_URL`, else the domain's."},
		"max_run":         schema.StringAttribute{Optional: true, MarkdownDescription: "The longest run that the account's plan allows, as a Go duration (`1h` or `24h` by the vendor's price list). A longer life is then refused before anything is made. Default: unknown, and the vendor refuses it."},
		"state_dir":       schema.StringAttribute{Optional: true, MarkdownDescription: "Directory of the records that the vendor can't hold. Default: sandboxer's state directory."},
	}
}

func modalAttributes() map[string]schema.Attribute {
	text := func(description string) schema.Attribute {
		return schema.StringAttribute{Optional: true, MarkdownDescription: description}
	}
	list := func(description string) schema.Attribute {
		return schema.ListAttribute{Optional: true, ElementType: types.StringType, MarkdownDescription: description}
	}
	return map[string]schema.Attribute{
		"token_id":         schema.StringAttribute{Optional: true, Sensitive: true, MarkdownDescription: "Id of a token, together with `token_secret`. Better kept out of files: by default both are taken from `MODAL_TOKEN_ID` and `MODAL_TOKEN_SECRET`, else from the profile file."},
		"token_secret":     schema.StringAttribute{Optional: true, Sensitive: true, MarkdownDescription: "Secret of the token."},
		"config_file":      text("Modal's profile file. Default: `MODAL_CONFIG_PATH`, else `.modal.toml` in the home directory."),
		"profile":          text("Profile of that file. Default: `MODAL_PROFILE`, else the one that is active there, else `default`."),
		"environment":      text("Environment of the workspace. Default: `MODAL_ENVIRONMENT`, else the profile's, else the workspace's own default."),
		"server_url":       text("Address of the service, without a path: HTTPS, or HTTP on this machine. Default: `MODAL_SERVER_URL`, else the vendor's."),
		"default_image":    text("Image of a profile that names none. Default: `debian:12-slim`."),
		"tunnels":          text("How ports of a profile are published on the internet: `tls` (default), where an endpoint speaks TLS on port 443, or `tcp`, in the clear."),
		"snapshot_timeout": text("How long a filesystem snapshot may take, as a Go duration. Default: `10m`; the vendor's own is 55 s."),
		"beyond_max":       text("What an extend does beyond the lifetime that the vendor was told at the create: `refuse` (default), or `replace`, which snapshots the sandbox, ends it and makes another one from that under the same id. Its files and variables go on; its processes, connections and addresses do not."),
		"regions":          list("Regions that sandboxes may run in. Default: the vendor picks."),
		"cloud":            text("Cloud that sandboxes run in: `aws`, `gcp`, `oci`. Default: the vendor picks."),
		"volumes":          schema.MapAttribute{Optional: true, ElementType: types.StringType, MarkdownDescription: "Volumes of the workspace, by the absolute path that they are seen at in each sandbox. What is in them outlives sandboxes and is in no snapshot."},
		"secrets":          list("Named secrets of the workspace, which each sandbox has as environment variables."),
		"state_dir":        text("Directory of what the vendor can't hold: which snapshots there are, and locks. Default: sandboxer's state directory."),
	}
}

// sshAttributes is how hosts are reached over SSH, in the words of the
// transport itself.
func sshAttributes() map[string]schema.Attribute {
	attributes := map[string]schema.Attribute{}
	for _, key := range sshtransport.Keys() {
		switch key.Type {
		case "bool":
			attributes[key.Name] = schema.BoolAttribute{Optional: true, Sensitive: key.Sensitive, MarkdownDescription: key.Description}
		case "list":
			attributes[key.Name] = schema.ListAttribute{Optional: true, Sensitive: key.Sensitive, MarkdownDescription: key.Description, ElementType: types.StringType}
		default:
			attributes[key.Name] = schema.StringAttribute{Optional: true, Sensitive: key.Sensitive, MarkdownDescription: key.Description}
		}
	}
	return attributes
}

// known are the extensions that have an attribute of their own, by its name.
var known = []string{config.ExtensionDocker, config.ExtensionE2B, config.ExtensionLocal, config.ExtensionModal}

// providerSchema takes the descriptions from the one table of the
// configuration.
func providerSchema() schema.Schema {
	about := map[string]string{}
	for _, a := range config.Attributes() {
		about[a.Name] = a.Description
		if a.Env != "" {
			about[a.Name] += " Also set by `" + a.Env + "`."
		}
	}
	of := map[string]string{}
	for _, a := range config.BackendAttributes() {
		of[a.Name] = a.Description
	}
	text := func(name string) schema.Attribute {
		return schema.StringAttribute{Optional: true, MarkdownDescription: about[name]}
	}
	durationText := func(name string) schema.Attribute {
		return schema.StringAttribute{
			Optional: true, CustomType: durationType{}, MarkdownDescription: about[name],
			Validators: []validator.String{positive{}},
		}
	}
	number := func(name string) schema.Attribute {
		return schema.Int64Attribute{
			Optional: true, MarkdownDescription: about[name], Validators: []validator.Int64{int64validator.Between(1, 1_000_000)},
		}
	}
	amount := func(name string) schema.Attribute {
		return schema.Float64Attribute{
			Optional: true, MarkdownDescription: about[name], Validators: []validator.Float64{float64validator.Between(1e-6, sandbox.MaxMoney.Dollars())},
		}
	}
	dirs := func(name string) schema.Attribute {
		return schema.ListAttribute{Optional: true, ElementType: types.StringType, MarkdownDescription: about[name]}
	}
	const (
		local  = "The embedded backend: gVisor, nothing to install (Linux)."
		docker = "A Docker Engine, or what speaks its API on a socket."
		e2b    = "E2B's cloud, with an API key of your own."
		modal  = "Modal's cloud, with a token of your own."
	)
	return schema.Schema{
		MarkdownDescription: "Sandboxes that are isolated, bounded in time and attributable, on the backend of your choice.\n\n" +
			"Nothing has to be configured: on Linux the embedded backend `local` is used, `docker` elsewhere. " +
			"What the block leaves out is taken from the environment and from `sandboxer.hcl`, the same as on the command line, " +
			"so that `sandboxer` and Terraform act on the same fleet.",
		Attributes: map[string]schema.Attribute{
			"fleet":                   text("fleet"),
			"backend":                 text("backend"),
			"default_ttl":             durationText("default_ttl"),
			"max_ttl":                 durationText("max_ttl"),
			"max_sandboxes":           number("max_sandboxes"),
			"max_sandboxes_per_owner": number("max_sandboxes_per_owner"),
			"max_cost_per_hour":       amount("max_cost_per_hour"),
			"max_committed":           amount("max_committed"),
			"prices": schema.MapNestedAttribute{
				Optional: true, MarkdownDescription: about["prices"],
				NestedObject: schema.NestedAttributeObject{Attributes: priceAttributes()},
			},
			"on_unreachable": schema.StringAttribute{
				Optional: true, MarkdownDescription: about["on_unreachable"],
				Validators: []validator.String{stringvalidator.OneOf(string(lifecycle.UnreachableFail), string(lifecycle.UnreachableForget))},
			},
			"owner":          text("owner"),
			"task":           text("task"),
			"run":            text("run"),
			"state_dir":      text("state_dir"),
			"extension_dirs": dirs("extension_dirs"),
			"profile_dirs":   dirs("profile_dirs"),
			"local": schema.SingleNestedAttribute{
				Optional: true, Attributes: localAttributes(),
				MarkdownDescription: local + " Short for a backend named `local`.",
			},
			"docker": schema.SingleNestedAttribute{
				Optional: true, Attributes: dockerAttributes(),
				MarkdownDescription: docker + " Short for a backend named `docker`.",
			},
			"e2b": schema.SingleNestedAttribute{
				Optional: true, Attributes: e2bAttributes(),
				MarkdownDescription: e2b + " Short for a backend named `e2b`.",
			},
			"modal": schema.SingleNestedAttribute{
				Optional: true, Attributes: modalAttributes(),
				MarkdownDescription: modal + " Short for a backend named `modal`.",
			},
			"backends": schema.MapNestedAttribute{
				Optional: true, MarkdownDescription: "Configured backends by name. Each names its extension: by the attribute of that name (`{ docker = {} }`) or, for any other, by `extension` and `config_json`.",
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"extension":   schema.StringAttribute{Optional: true, MarkdownDescription: of["extension"]},
					"config_json": schema.StringAttribute{Optional: true, Sensitive: true, MarkdownDescription: of["config_json"]},
					"path":        schema.StringAttribute{Optional: true, MarkdownDescription: of["path"]},
					"sha256":      schema.StringAttribute{Optional: true, MarkdownDescription: of["sha256"]},
					"env":         schema.ListAttribute{Optional: true, ElementType: types.StringType, MarkdownDescription: of["env"]},
					"local":       schema.SingleNestedAttribute{Optional: true, Attributes: localAttributes(), MarkdownDescription: local},
					"docker":      schema.SingleNestedAttribute{Optional: true, Attributes: dockerAttributes(), MarkdownDescription: docker},
					"e2b":         schema.SingleNestedAttribute{Optional: true, Attributes: e2bAttributes(), MarkdownDescription: e2b},
					"modal":       schema.SingleNestedAttribute{Optional: true, Attributes: modalAttributes(), MarkdownDescription: modal},
				}},
			},
		},
	}
}

// decodeBlock reads the provider block into a configuration. Attributes that
// are not wholly known yet are named in unknown.
func decodeBlock(ctx context.Context, raw tfsdk.Config) (block config.Config, unknown []string, diags diag.Diagnostics) {
	unknown = unknownAttributes(raw.Raw)
	if len(unknown) > 0 {
		return block, unknown, nil
	}
	var model providerModel
	diags.Append(raw.Get(ctx, &model)...)
	if diags.HasError() {
		return block, nil, diags
	}
	block = config.Config{
		Fleet: model.Fleet.ValueString(), Backend: model.Backend.ValueString(),
		Owner: model.Owner.ValueString(), Task: model.Task.ValueString(), Run: model.Run.ValueString(),
		DefaultTTL: durationOf(model.DefaultTTL), MaxTTL: durationOf(model.MaxTTL),
		MaxSandboxes: int(model.MaxSandboxes.ValueInt64()), MaxSandboxesPerOwner: int(model.MaxSandboxesPerOwner.ValueInt64()),
		OnUnreachable: lifecycle.OnUnreachable(model.OnUnreachable.ValueString()),
		StateDir:      absolute(model.StateDir.ValueString()),
	}
	// The schema has bounded them.
	block.MaxCostPerHour, _ = sandbox.MoneyOf(model.MaxCostPerHour.ValueFloat64())
	block.MaxCommitted, _ = sandbox.MoneyOf(model.MaxCommitted.ValueFloat64())
	prices := map[string]priceModel{}
	diags.Append(model.Prices.ElementsAs(ctx, &prices, false)...)
	for name, price := range prices {
		if block.Prices == nil {
			block.Prices = map[string]config.Price{}
		}
		block.Prices[name] = price.price()
	}
	diags.Append(model.ExtensionDirs.ElementsAs(ctx, &block.ExtensionDirs, false)...)
	diags.Append(model.ProfileDirs.ElementsAs(ctx, &block.ProfileDirs, false)...)
	for _, dirs := range [][]string{block.ExtensionDirs, block.ProfileDirs} {
		for i := range dirs {
			dirs[i] = absolute(dirs[i])
		}
	}
	backends := map[string]backendModel{}
	diags.Append(model.Backends.ElementsAs(ctx, &backends, false)...)
	block.Backends = map[string]config.Backend{}
	for _, name := range slices.Sorted(maps.Keys(backends)) {
		backend, found := backends[name].decode(ctx, path.Root("backends").AtMapKey(name))
		diags.Append(found...)
		block.Backends[name] = backend
	}
	for _, name := range known {
		object := map[string]types.Object{config.ExtensionLocal: model.Local, config.ExtensionDocker: model.Docker, config.ExtensionE2B: model.E2B, config.ExtensionModal: model.Modal}[name]
		if object.IsNull() {
			continue
		}
		if _, twice := block.Backends[name]; twice {
			diags.AddAttributeError(path.Root(name), "Backend configured twice", "`"+name+"` is short for a backend of that name, which `backends` configures too. Leave out one of them.")
		}
		block.Backends[name] = config.Backend{Extension: name, Config: objectJSON(object)}
	}
	if diags.HasError() {
		return block, nil, diags
	}
	// The backend may be one that a configuration file defines: whether it
	// exists is known when the two are put together.
	known := block
	known.Backend = ""
	addError(&diags, "Faulty provider configuration", known.Validate(), providerBlame)
	return block, nil, diags
}

func (b backendModel) decode(ctx context.Context, at path.Path) (config.Backend, diag.Diagnostics) {
	var diags diag.Diagnostics
	backend := config.Backend{Extension: b.Extension.ValueString(), Path: absolute(b.Path.ValueString()), SHA256: b.SHA256.ValueString()}
	diags.Append(b.Env.ElementsAs(ctx, &backend.Env, false)...)
	if !b.ConfigJSON.IsNull() {
		backend.Config = json.RawMessage(b.ConfigJSON.ValueString())
	}
	for _, name := range known {
		object := map[string]types.Object{config.ExtensionLocal: b.Local, config.ExtensionDocker: b.Docker, config.ExtensionE2B: b.E2B, config.ExtensionModal: b.Modal}[name]
		switch {
		case object.IsNull():
		case backend.Extension != "" || backend.Config != nil:
			diags.AddAttributeError(at.AtName(name), "Two extensions for one backend", "A backend has one extension and one configuration: leave out `extension`, `config_json` and the others, or `"+name+"`.")
		default:
			backend.Extension, backend.Config = name, objectJSON(object)
		}
	}
	if backend.Extension == "" {
		diags.AddAttributeError(at, "No extension for a backend", "Write `{ docker = {} }` or, for another extension, `{ extension = \"NAME\" }`.")
	}
	return backend, diags
}

// providerBlame finds the attribute of the provider block.
func providerBlame(at string) (path.Path, bool) {
	name, rest, _ := strings.Cut(at, ".")
	found := path.Root(name)
	if (name != "backends" && name != "prices") || rest == "" {
		return found, true
	}
	backend, attribute, _ := strings.Cut(rest, ".")
	found = found.AtMapKey(backend)
	if attribute, _, _ = strings.Cut(attribute, "["); attribute != "" {
		found = found.AtName(attribute)
	}
	return found, true
}

// unknownAttributes names the attributes of an object that are not wholly
// known.
func unknownAttributes(raw tftypes.Value) []string {
	if !raw.IsKnown() {
		return []string{"configuration"}
	}
	attributes := map[string]tftypes.Value{}
	if raw.IsNull() || raw.As(&attributes) != nil {
		return nil
	}
	var unknown []string
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if !attributes[name].IsFullyKnown() {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

// objectJSON writes the configuration of an extension: the attributes that
// are set, under their own names.
func objectJSON(object types.Object) json.RawMessage {
	set := map[string]any{}
	for name, value := range object.Attributes() {
		if v := plain(value); v != nil {
			set[name] = v
		}
	}
	// Strings, numbers, and lists and objects of them always encode.
	encoded, _ := json.Marshal(set)
	return encoded
}

// plain returns a value as JSON has it, nil when it is null.
func plain(value attr.Value) any {
	if value.IsNull() {
		return nil
	}
	switch v := value.(type) {
	case types.String:
		return v.ValueString()
	case types.Bool:
		return v.ValueBool()
	case types.Int64:
		return v.ValueInt64()
	case types.List:
		elements := make([]any, 0, len(v.Elements()))
		for _, element := range v.Elements() {
			elements = append(elements, plain(element))
		}
		return elements
	case types.Object:
		members := map[string]any{}
		for name, member := range v.Attributes() {
			if m := plain(member); m != nil {
				members[name] = m
			}
		}
		return members
	}
	return fmt.Sprint(value)
}

// absolute resolves a path against Terraform's working directory, as every
// other path in a configuration is.
func absolute(dir string) string {
	if dir == "" {
		return ""
	}
	if resolved, err := filepath.Abs(dir); err == nil {
		return resolved
	}
	return dir
}

// durationOf returns a validated duration, 0 when there is none.
func durationOf(d duration) time.Duration {
	if d.IsNull() || d.IsUnknown() {
		return 0
	}
	parsed, err := sandbox.ParseDuration(d.ValueString())
	if err != nil {
		return 0
	}
	return parsed
}
