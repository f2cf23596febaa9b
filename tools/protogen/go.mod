module github.com/sand-boxer/terraform-provider-sandboxer/tools/protogen

go 1.26.0

require (
	github.com/bufbuild/protocompile v0.14.1 
	golang.org/x/net v0.60.0 
	golang.org/x/sync v0.23.0 
	golang.org/x/sys v0.48.0 
	golang.org/x/text v0.42.0 
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 
	google.golang.org/grpc v1.85.0 
	google.golang.org/grpc/cmd/protoc-gen-go-grpc v1.6.2 
	google.golang.org/protobuf v1.36.12 
)

tool (
	google.golang.org/grpc/cmd/protoc-gen-go-grpc
	google.golang.org/protobuf/cmd/protoc-gen-go
)
