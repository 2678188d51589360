-- There is no submission by SQL here: the one file belongs to the node. The version keeps step.
SELECT 1;
