/* tests/cluster/node.h - a machine of a test's cluster: a network namespace and a host name, with one Ethernet port.
 *
 * Purpose    Opens the namespaces of a node, its loopback and a TAP "eth0" with an address, and finds the processes that live
 *            there. The namespaces have no name in the file system: whoever enters them goes through the descriptors
 *            (/proc/PID/fd/N), and they are gone with the last process in them. Needs CAP_NET_ADMIN and CAP_SYS_ADMIN.
 * Ownership  node_open fills a struct of the caller; its descriptors live until the process ends.
 * Threading  One thread: opening a node moves the calling thread into its namespaces.
 * Errors     -1 with a line on stderr.
 */
#ifndef SLUICE_TESTS_CLUSTER_NODE_H
#define SLUICE_TESTS_CLUSTER_NODE_H

#include <stdint.h>

enum { NODE_MTU = 9000, NODE_FIRST_ADDRESS = 10 }; /* node i is 10.77.0.(10 + i)/24, hardware address 02:00:00:00:00:(10 + i) */

struct node {
    char name[16]; /* its host name */
    uint8_t mac[6];
    int net_fd, uts_fd; /* its namespaces */
    int tap;            /* frames of its eth0, non-blocking */
};

/* Node `index`, a new one. The caller is in its namespaces afterwards. */
int node_open(struct node *node, int index);
/* Kills what lives in the nodes, but for two: the caller and `spared`. Returns when nothing is left, or after two seconds. */
void node_kill_processes(const struct node *nodes, int n, int spared);

#endif
