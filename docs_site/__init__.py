"""What `make docs` needs beside the pages themselves."""
