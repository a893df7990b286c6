"""The SDN controller: paths as OpenFlow rules."""
