// The etcd server, as its own module ships it: `go install` of the module itself refuses, because
// it replaces some of its dependencies.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
